import pytest
from botocore.exceptions import ClientError

from workers.contract.errors import StoreBusy, StoreDenied, StoreUnavailable
from workers.s3_answers import cause_of, kind_of


def answer(status: int, code: str, message: str = "") -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "PutObject",
    )


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", StoreDenied),
        (403, "AccountSuspended", StoreDenied),
        (403, "ExpiredToken", StoreDenied),
        (400, "ExpiredToken", StoreDenied),
        (400, "400", StoreDenied),
        (401, "Whatever", StoreDenied),
        (404, "NoSuchBucket", StoreDenied),
        (503, "SlowDown", StoreBusy),
        (503, "ServiceUnavailable", StoreBusy),
        (503, "503", StoreBusy),
        (429, "TooManyRequests", StoreBusy),
        (400, "BadDigest", StoreUnavailable),
        (409, "ConditionalRequestConflict", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
    ],
)
def test_an_answer_of_s3_is_what_it_means_for_who_waits(status: int, code: str, kind: type[Exception]) -> None:
    assert kind_of(answer(status, code)) is kind


def test_a_cause_holds_status_code_and_message_each_once() -> None:
    assert (
        cause_of(answer(503, "SlowDown", "Please reduce your request rate.")) == "503 SlowDown Please reduce your request rate."
    )
    assert cause_of(answer(503, "503", "Service Unavailable")) == "503 Service Unavailable"
    assert cause_of(answer(400, "400", "Bad Request")) == "400 to a HEAD, which tells no reason; most often an expired token"
