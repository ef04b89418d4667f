"""Averaging between peers, on hivemind: who meets, what is sent, and what is believed."""
