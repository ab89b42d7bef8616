"""How obstore answers with each object store, and when the way there is bad: what reading and writing there rest on."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

import stores
from http_proxy import Fault

each_store = pytest.mark.parametrize("kind", stores.KINDS)

QUICKLY = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=10), "base": 2}
RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=30), "backoff": QUICKLY}


@each_store
def test_a_key_is_created_once(kind, object_store):
    store = from_url(object_store(kind))
    obstore.put(store, "logs/a b=1.txt", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "logs/a b=1.txt", b"second", mode="create")
    assert bytes(obstore.get(store, "logs/a b=1.txt").bytes()) == b"first"


@each_store
def test_of_two_that_create_the_same_key_at_once_one_wins(kind, object_store):
    store = from_url(object_store(kind))
    start = Barrier(2)

    def create(who: bytes) -> list[str]:
        won = []
        for key in map(str, range(10)):
            start.wait()
            try:
                obstore.put(store, key, who, mode="create")
            except AlreadyExistsError:
                continue
            won.append(key)
        return won

    with ThreadPoolExecutor(2) as pool:
        won = dict(zip((b"a", b"b"), pool.map(create, (b"a", b"b")), strict=True))
    assert sorted(won[b"a"] + won[b"b"]) == sorted(map(str, range(10)))
    for who, keys in won.items():
        assert {bytes(obstore.get(store, key).bytes()) for key in keys} <= {who}


@each_store
def test_a_listing_of_a_prefix_has_sizes_and_versions(kind, object_store):
    store = from_url(object_store(kind))
    for key, body in {"day=1/a": b"12345", "day=1/b/c": b"", "day=10/a": b"1"}.items():
        obstore.put(store, key, body)
    listed = {each["path"]: each for each in obstore.list(store, "day=1").collect()}
    assert {key: each["size"] for key, each in listed.items()} == {"day=1/a": 5, "day=1/b/c": 0}
    here = obstore.list_with_delimiter(store, "day=1")
    assert [each["path"] for each in here["objects"]] == ["day=1/a"]
    assert list(here["common_prefixes"]) == ["day=1/b"]

    # Azure and Google's stand-in list a tag without the quotes that it has elsewhere.
    def tag(meta) -> str:
        return meta["e_tag"].strip('"')

    assert tag(listed["day=1/a"]) == tag(obstore.head(store, "day=1/a"))
    written = obstore.put(store, "day=1/a", b"54321")
    assert tag(written) != tag(listed["day=1/a"])
    assert tag(written) == tag(obstore.list(store, "day=1").collect()[0])


@each_store
def test_a_range_is_read(kind, object_store):
    store = from_url(object_store(kind))
    obstore.put(store, "key", b"0123456789")
    assert bytes(obstore.get_range(store, "key", start=2, length=3)) == b"234"
    assert list(map(bytes, obstore.get_ranges(store, "key", starts=[0, 8], lengths=[1, 2]))) == [b"0", b"89"]


@each_store
def test_what_is_not_there_is_a_missing_file(kind, object_store):
    store = from_url(object_store(kind))
    for read in (obstore.get, obstore.head):
        with pytest.raises(FileNotFoundError):
            read(store, "nothing")
    assert obstore.list(store, "nothing").collect() == []


@each_store
def test_a_create_whose_answer_is_lost_is_tried_again_and_finds_its_own_object(kind, faulty_store):
    """obstore tries again, and the second try meets what the first one wrote: success looks like a lost race.

    Who creates has to read what is there, and to compare it with what it wrote.
    """
    address, proxy = faulty_store(kind)
    store = from_url(address, retry_config=RETRIES)
    proxy.faults = [Fault("lose", "PUT")]
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "key", b"mine", mode="create")
    assert proxy.count("PUT") == 2
    assert bytes(obstore.get(store, "key").bytes()) == b"mine"


@each_store
def test_without_retries_a_create_whose_answer_is_lost_fails_though_it_wrote(kind, faulty_store):
    address, proxy = faulty_store(kind)
    store = from_url(address, retry_config={"max_retries": 0})
    proxy.faults = [Fault("lose", "PUT")]
    with pytest.raises(BaseError) as raised:
        obstore.put(store, "key", b"mine", mode="create")
    assert not isinstance(raised.value, AlreadyExistsError)
    assert bytes(obstore.get(store, "key").bytes()) == b"mine"


@each_store
@pytest.mark.parametrize("fault", [("status", 503), ("status", 500), ("status", 429), ("drop", 0)], ids=str)
def test_what_did_not_reach_the_server_is_sent_again(kind, fault, faulty_store):
    address, proxy = faulty_store(kind)
    store = from_url(address, retry_config=RETRIES)
    action, status = fault
    proxy.faults = [Fault(action, times=2, status=status)]
    obstore.put(store, "key", b"body", mode="create")
    proxy.faults = [Fault(action, times=2, status=status)]
    assert bytes(obstore.get(store, "key").bytes()) == b"body"
    assert (proxy.count("PUT"), proxy.count("GET")) == (3, 3)


@each_store
def test_a_conflict_is_reported_as_an_existing_key_though_there_is_none(kind, faulty_store):
    """S3 answers 409 to a create while another one is under way, and asks to try again; obstore does not."""
    address, proxy = faulty_store(kind)
    store = from_url(address, retry_config=RETRIES)
    proxy.faults = [Fault("status", "PUT", status=409)]
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "key", b"body", mode="create")
    assert proxy.count("PUT") == 1
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "key")


@each_store
def test_a_store_that_stays_away_is_given_up_after_the_retries_and_after_their_time(kind, faulty_store):
    address, proxy = faulty_store(kind)
    store = from_url(address, retry_config=RETRIES)
    proxy.faults = [Fault("status", "GET", times=10**6)]
    with pytest.raises(BaseError, match="503"):
        obstore.get(store, "key")
    assert proxy.count("GET") == 1 + RETRIES["max_retries"]

    seconds = timedelta(milliseconds=200)
    store = from_url(address, retry_config=RETRIES | {"max_retries": 1000, "retry_timeout": seconds})
    proxy.requests.clear()
    with pytest.raises(BaseError, match="503"):
        obstore.get(store, "key")
    # Between two requests it waits for at least 10 ms; one more may begin before the time is over.
    assert proxy.count("GET") <= 2 + seconds / QUICKLY["init_backoff"]


@each_store
def test_of_a_body_that_breaks_off_only_the_rest_is_asked_for(kind, faulty_store):
    address, proxy = faulty_store(kind)
    store = from_url(address, retry_config=RETRIES)
    body = bytes(range(256)) * 40
    obstore.put(store, "key", body)
    proxy.faults = [Fault("truncate", "GET", "key")]
    assert bytes(obstore.get(store, "key").bytes()) == body
    ranges = [{k.lower(): v for k, v in each.headers.items()}.get("range") for each in proxy.requests[1:]]
    assert ranges == [None, f"bytes={len(body) // 2}-{len(body) - 1}"]


@each_store
def test_a_listing_that_breaks_off_is_an_error(kind, faulty_store):
    address, proxy = faulty_store(kind)
    store = from_url(address, retry_config=RETRIES)
    obstore.put(store, "key", b"body")
    proxy.faults = [Fault("truncate", "GET")]
    with pytest.raises(BaseError, match="list response"):
        obstore.list(store).collect()


@each_store
def test_a_proxy_answers_with_the_last_listing(kind, faulty_store):
    address, proxy = faulty_store(kind)
    store = from_url(address, retry_config=RETRIES)

    def listed() -> list[str]:
        return [each["path"] for each in obstore.list(store, "day").collect()]

    obstore.put(store, "day/1", b"")
    proxy.faults = [Fault("stale", "GET")]
    assert listed() == ["day/1"]
    obstore.put(store, "day/2", b"")
    assert listed() == ["day/1"]
    assert listed() == ["day/1", "day/2"]
    assert proxy.faults == []


@each_store
def test_deleting_again_is_silent_in_s3_alone(kind, object_store):
    store = from_url(object_store(kind))
    obstore.put(store, "key", b"")
    obstore.delete(store, "key")
    if kind == "s3":
        obstore.delete(store, "key")
        return
    with pytest.raises(FileNotFoundError):
        obstore.delete(store, "key")


def test_each_test_has_an_empty_bucket_of_its_own(object_store):
    first = object_store("s3")
    obstore.put(from_url(first), "key", b"")
    second = object_store("s3")
    assert second != first
    assert obstore.list(from_url(second)).collect() == []
