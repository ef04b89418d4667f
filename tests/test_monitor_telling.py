"""Problems reach people who are elsewhere, and the address by which they do reaches nobody else."""

import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dalle_lib.hub_http import httpx
from dalle_lib.monitor.telling import WEBHOOK, Gauges, Webhook, serve, webhook_in
from dalle_lib.rehearsal.evening import free_place

STATUS = {
    "epoch": 7, "total_epochs": 60, "samples_per_s": 4.5, "loss": None, "looked": 1_790_000_000, "totals": {"users": 3},
    "alarms": [{"until": None}, {"until": 5}], "checkpoints": [{"epoch": 6, "made": 1_790_000_000}],
    "peers_by_state": {"training": 2, "gone": 1},
}  # fmt: skip


def test_prometheus_reads_how_the_run_stands():
    port = int(free_place().partition(":")[2])
    end = serve(Gauges(lambda: STATUS), port)
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    finally:
        end()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert found["run_epoch",] == 7
    assert found["run_alarms",] == 1
    assert found["run_peers", "training"] == 2
    assert found["run_checkpoint_epoch",] == 6
    assert ("run_loss",) not in found, "nothing is known of it"


def test_before_the_first_status_there_is_nothing_to_read():
    assert list(Gauges(dict).collect()) == []


def test_messages_reach_the_webhook_gathered_and_names_in_them_call_nobody(monkeypatch):
    monkeypatch.setattr("dalle_lib.monitor.telling.BETWEEN_S", 1.0)
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args):
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    webhook = Webhook(f"http://127.0.0.1:{server.server_port}/secret", "photos")
    webhook.tell("nobody trains.")
    deadline = time.monotonic() + 30
    while len(got) < 2 and time.monotonic() < deadline:
        if got:
            webhook.tell("<!channel> @everyone [x](y) is apart.")
        time.sleep(0.05)
    server.shutdown()
    server.server_close()
    assert [message["text"] for message in got] == [message["content"] for message in got]
    assert got[0]["text"] == "photos: nobody trains."
    assert got[1]["text"].startswith("photos: ‹!channel› ＠everyone (x)(y) is apart. ‹!channel›")
    assert len(got[1]["text"]) <= 2000
    assert got[1]["allowed_mentions"] == {"parse": []}
    assert "secret" not in repr(webhook)


@pytest.mark.parametrize("place", ["", ":99999"])
def test_a_webhook_that_is_away_is_logged_without_its_address(caplog, place):
    with caplog.at_level(logging.WARNING):
        Webhook(f"http://{place or free_place()}/secret", "photos").tell("x")
        deadline = time.monotonic() + 30
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "was not sent to the webhook" in caplog.text
    assert "secret" not in caplog.text


def test_the_address_is_in_a_file_and_a_wrong_one_is_not_repeated(tmp_path):
    assert webhook_in(tmp_path) is None
    (tmp_path / WEBHOOK).write_text("https://hooks.example.org/T0/secret\n")
    assert webhook_in(tmp_path) == "https://hooks.example.org/T0/secret"
    (tmp_path / WEBHOOK).write_text("http://hooks.example.org/secret")
    with pytest.raises(ValueError, match="begins with https") as refused:
        webhook_in(tmp_path)
    assert "secret" not in str(refused.value).replace(str(tmp_path), "")
