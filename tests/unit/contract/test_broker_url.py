"""FLEET_BROKER in all its forms: what each client is given, what is refused, and what is never shown."""

import pytest

from workers.celery import make_app
from workers.contract.broker_url import parse_broker_url, without_password
from workers.contract.errors import SettingsError
from workers.contract.settings import FleetSettings

SENTINELS = "sentinel://fleet:s%40cret@a:26379,b,[::1]:26400/2?master=mymaster&sentinel_password=x"


def test_a_plain_redis_goes_to_every_client_as_it_is() -> None:
    place = parse_broker_url("redis://h/3")
    assert (place.celery_url, place.hosts, place.db) == ("redis://h:6379/3", (("h", 6379),), 3)
    assert (place.tls, place.master) == (None, "")
    assert (place.username, place.password) == (None, None)
    assert parse_broker_url("redis://:p%2Fw@[::1]:7000").celery_url == "redis://:p%2Fw@[::1]:7000/0"
    assert parse_broker_url("redis://:p%2Fw@[::1]:7000").password == "p/w"


def test_tls_verifies_certificates_unless_told_otherwise() -> None:
    assert parse_broker_url("rediss://h/0").tls == {"ssl_cert_reqs": "required"}
    place = parse_broker_url("rediss://u:p@h:6380/0?ssl_ca_certs=/etc/ca.pem&ssl_cert_reqs=none&ssl_check_hostname=false")
    assert place.tls == {"ssl_ca_certs": "/etc/ca.pem", "ssl_cert_reqs": "none", "ssl_check_hostname": False}
    assert place.celery_url == "rediss://u:p@h:6380/0"


def test_sentinels_become_what_celery_wants() -> None:
    place = parse_broker_url(SENTINELS)
    assert place.hosts == (("a", 26379), ("b", 26379), ("::1", 26400))
    assert (place.username, place.password, place.db, place.master) == ("fleet", "s@cret", 2, "mymaster")
    app = make_app(FleetSettings(broker=SENTINELS, store="s3://b/p"))
    user = "sentinel://fleet:s%40cret@"
    assert app.conf.broker_url == f"{user}a:26379/2;{user}b:26379/2;{user}[::1]:26400/2"
    options = app.conf.broker_transport_options
    assert (options["master_name"], options["sentinel_kwargs"]["password"]) == ("mymaster", "x")


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("amqp://h", ""),
        ("redis:h", ""),
        ("redis://", "(no host)"),
        ("redis://h:0", "(port 0)"),
        ("redis://h:port", "(Port could not be cast"),
        ("redis://h:70000", "(Port out of range"),
        ("redis://h/first", "(invalid literal for int()"),
        ("redis://a,b/0", "(several hosts; only sentinel:// takes them)"),
        ("redis://h/0?ssl_ca_certs=x", "(unknown option ssl_ca_certs)"),
        ("rediss://h/0?ssl_ca_cert=x", "(unknown option ssl_ca_cert)"),
        ("sentinel://a,b/0", "(no ?master=NAME)"),
        ("sentinel://a,,b/0?master=m", "(no host)"),
    ],
)
def test_what_is_of_no_form_is_refused_with_the_forms(url: str, cause: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_broker_url(url)
    assert str(caught.value).startswith(f"FLEET_BROKER is '{url}', expected redis://[user:password@]host:6379/0, rediss://")
    assert cause in str(caught.value)


@pytest.mark.parametrize(
    ("url", "unprotected"),
    [
        ("redis://10.0.0.1/0", True),
        ("redis://user@redis-host/0", True),
        ("rediss://redis-host/0", True),
        ("redis://:p@10.0.0.1/0", False),
        ("redis://127.0.0.1:7000/0", False),
        ("redis://127.9.9.9/0", False),
        ("redis://localhost/0", False),
        ("redis://[::1]:1/0", False),
        ("sentinel://127.0.0.1,10.0.0.2/0?master=m", True),
    ],
)
def test_a_redis_that_anyone_can_reach_is_unprotected_without_a_password(url: str, *, unprotected: bool) -> None:
    assert parse_broker_url(url).unprotected is unprotected


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (SENTINELS, "sentinel://***@a:26379,b,[::1]:26400/2?***"),
        ("redis://user:pa?ss/w@rd@h:1/0", "redis://***@h:1/0"),
        ("redis://h:1/0", "redis://h:1/0"),
        ("rediss://h/0?ssl_ca_certs=/etc/ca.pem", "rediss://h/0?ssl_ca_certs=/etc/ca.pem"),
        ("no url", "no url"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
