"""Where shards may be sent, and what never belongs in a configuration."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from specflow.config.capture import CaptureParams
from specflow.workflow.keys import key_parameters


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/b/", "gs://bucket/a", "az://account/a", "file:///data"])
def test_places(url: str) -> None:
    assert CaptureParams(layer_ids=(0,), store_url=url).store_url == url.rstrip("/")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("bucket/a", "no place for shards"),
        ("http://bucket/a", "no place for shards"),
        ("s3://", "no place for shards"),
        ("s3://key:secret@bucket/a", "more than a place"),
        ("s3://bucket/a?token=secret", "more than a place"),
    ],
)
def test_what_is_no_place(url: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CaptureParams(layer_ids=(0,), store_url=url)


def test_secrets_have_no_field() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        CaptureParams(layer_ids=(0,), store_options={"secret_access_key": "x"})


def test_where_shards_lie_is_not_in_the_key_and_their_form_is() -> None:
    plain = key_parameters(CaptureParams(layer_ids=(0,)))
    far = CaptureParams(layer_ids=(0,), store_url="s3://b/p", store_options={"region": "eu-west-1"})
    assert key_parameters(far) == plain
    for change in ({"storage": "fp8"}, {"rows": "usable"}):
        assert key_parameters(CaptureParams(layer_ids=(0,), **change)) != plain
