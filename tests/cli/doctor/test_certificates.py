"""What `mainspring doctor` says of certificates: those that can be used, end soon, or are not there."""

from __future__ import annotations

import time
from pathlib import Path

from mainspring.cli.authority import Authority
from mainspring.cli.configuration.config import read_config
from mainspring.cli.doctor.machine import DAY_S, certificates


def test_without_keys_there_is_nothing_to_say() -> None:
    assert certificates(read_config({}, "the test")) == []


def test_each_process_certificate_is_tried(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "here")
    authority.issue("controller", "controller", (), 90)
    authority.issue("gateway", "gateway", ("localhost",), 10)
    config = read_config(
        {
            "cluster": {"keys": str(tmp_path)},
            "gateway": {"http_address": "https://127.0.0.1:0", "tls": str(tmp_path / "gateway")},
        },
        "the test",
    )
    controller, gateway, worker, tls = certificates(config)
    assert controller.good
    assert "valid for 90 days" in controller.found
    assert not gateway.good
    assert "mainspring keys issue gateway gateway" in gateway.remedy
    assert not worker.good
    assert "there is no folder" in worker.found
    assert "mainspring keys issue worker worker-0" in worker.remedy
    assert tls.good
    late = certificates(config, time.time() + 80 * DAY_S)
    assert not late[0].good
    (tmp_path / "gateway/key.pem").unlink()
    assert "has no key.pem" in certificates(config)[3].found
