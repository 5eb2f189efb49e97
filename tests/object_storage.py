"""A server that speaks S3, in a thread: what object storage does without any network."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import httpx
import pytest


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """Its address. Every bucket is gone with it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def bucket(s3_server: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket; the credentials are where a user's would be."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"features-{zlib.crc32(str(tmp_path).encode())}"
    httpx.put(f"{s3_server}/{name}").raise_for_status()
    return f"s3://{name}"
