"""What S3 and its client library answer, in our words: which codes and errors mean what. Pure."""

from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
    SSOError,
    TokenRetrievalError,
)

from workers.contract.errors import StoreBusy, StoreDenied, StoreUnavailable

_DENIED = frozenset(
    {
        *("401", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket"),
        *("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed"),
        "400",  # of a HEAD, whose answer has no body to say more: S3 answers so to an expired token
    }
)
_BUSY = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "503",
        "429",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
    }
)
ABSENT = frozenset({"404", "NoSuchKey"})
LOST_RACE = frozenset({"412", "PreconditionFailed"})
"""Not 409: two writers are at it, and either may fail yet; S3 says to try again."""
UNSUPPORTED = frozenset({"501", "NotImplemented"})
NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError, SSOError)
SPOILED = (IncompleteReadError, ResponseStreamingError, FlexibleChecksumError)
"""A body that was cut or changed on its way; boto3 tries again only what goes wrong before the body."""


def code_of(error: ClientError) -> str:
    """S3's own code, or the status of an answer without a body."""
    return error.response["Error"].get("Code", "")


def kind_of(error: ClientError) -> type[StoreDenied | StoreUnavailable]:
    """Which of our errors it is."""
    if code_of(error) in _DENIED or _status_of(error) in {401, 403}:
        return StoreDenied
    return StoreBusy if code_of(error) in _BUSY else StoreUnavailable


def _status_of(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def cause_of(error: ClientError) -> str:
    """Status, code and message, each once."""
    code, status = code_of(error), str(_status_of(error))
    if code == "400":
        return "400 to a HEAD, which tells no reason; most often an expired token"
    told = (status, code, error.response["Error"].get("Message", ""))
    return " ".join(word for word in dict.fromkeys(told) if word)
