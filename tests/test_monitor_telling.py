"""Problems reach people who are elsewhere, and the address by which they do reaches nobody else."""

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from waiting import wait_until

from dalle_lib.hub_http import httpx
from dalle_lib.monitor import telling
from dalle_lib.monitor.telling import WEBHOOK, Command, Gauges, Webhook, serve, webhook_in
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
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=60).text
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
    got, waits, all_is_told = [], [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args):
            """Print nothing."""

    def sleep(seconds):
        """Last, between two messages, until all is told, however busy the machine is."""
        waits.append(seconds)
        all_is_told.wait(60)

    monkeypatch.setattr(telling, "time", SimpleNamespace(sleep=sleep))
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    webhook = Webhook(f"http://127.0.0.1:{server.server_port}/secret", "photos")
    webhook.tell("nobody trains.")
    wait_until(lambda: waits)
    for _ in range(100):
        webhook.tell("<!channel> @everyone [x](y) is apart.")
    all_is_told.set()
    wait_until(lambda: len(got) == 2)
    server.shutdown()
    server.server_close()
    assert waits[0] == telling.BETWEEN_S
    assert [message["text"] for message in got] == [message["content"] for message in got]
    assert got[0]["text"] == "photos: nobody trains."
    assert got[1]["text"].startswith("photos: ‹!channel› ＠everyone (x)(y) is apart. ‹!channel›")
    assert len(got[1]["text"]) == telling.MAX_MESSAGE
    assert got[1]["allowed_mentions"] == {"parse": []}
    assert "secret" not in repr(webhook)


@pytest.mark.parametrize("place", ["", ":99999"])
def test_a_webhook_that_is_away_is_logged_without_its_address(caplog, place):
    with caplog.at_level(logging.WARNING):
        Webhook(f"http://{place or free_place()}/secret", "photos").tell("x")
        wait_until(lambda: "was not sent to the webhook" in caplog.text)
    assert "secret" not in caplog.text


def test_the_address_is_in_a_file_and_a_wrong_one_is_not_repeated(tmp_path):
    assert webhook_in(tmp_path) is None
    (tmp_path / WEBHOOK).write_text("https://hooks.example.org/T0/secret\n")
    assert webhook_in(tmp_path) == "https://hooks.example.org/T0/secret"
    (tmp_path / WEBHOOK).write_text("http://hooks.example.org/secret")
    with pytest.raises(ValueError, match="begins with https") as refused:
        webhook_in(tmp_path)
    assert "secret" not in str(refused.value).replace(str(tmp_path), "")


def test_a_command_finds_alarms_in_its_input_and_no_token_in_its_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    out = tmp_path / "$(touch out) it"
    script = tmp_path / "mail"
    script.write_text(f'#!/bin/sh\nenv > {tmp_path}/env\ncat > "$2.part" && mv "$2.part" "$2"\n')
    script.chmod(0o700)
    Command(f"{script} -s '{out}'", "photos").tell("`~!rm` is apart.\n~!rm")
    wait_until(out.exists)
    assert out.read_text() == "photos: '~!rm' is apart. ~!rm\n"
    assert "hf_secret" not in (tmp_path / "env").read_text()


@pytest.mark.parametrize("how", ["false", "sleep 60"])
def test_a_command_that_fails_is_logged_and_ended(caplog, monkeypatch, how):
    monkeypatch.setattr("dalle_lib.monitor.telling.COMMAND_S", 0.2)
    Command(how, "photos").tell("x")
    wait_until(lambda: f"the alarm command {how.split()[0]} has not sent a message" in caplog.text)


@pytest.mark.parametrize("command", ["'mail", "/nowhere/mail -s x", " "])
def test_a_command_that_is_not_there_is_refused(command):
    with pytest.raises(ValueError, match="expected a program of this machine as the alarm command"):
        Command(command, "photos")
