"""pymemcache with its defaults against the ports that are given."""

import sys
import time

from pymemcache.client.base import Client
from pymemcache.serde import pickle_serde


def check(port):
    client = Client(("127.0.0.1", port), default_noreply=False)
    prefix = f"pymemcache-{time.time_ns()}-"
    key = prefix + "key"

    assert client.version().startswith(b"1.")
    assert client.set(key, "value") is True
    assert client.get(key) == b"value"
    assert client.get(prefix + "missing") is None
    assert client.add(key, "other") is False
    assert client.replace(key, "other") is True
    assert client.append(key, "!") is True
    assert client.prepend(key, "?") is True
    value, cas = client.gets(key)
    assert value == b"?other!"
    assert client.cas(key, "swapped", cas) is True
    assert client.cas(key, "again", cas) is False
    assert client.cas(prefix + "missing", "x", cas) is None

    assert client.set(prefix + "count", "5") is True
    assert client.incr(prefix + "count", 3) == 8
    assert client.decr(prefix + "count", 10) == 0
    assert client.incr(prefix + "missing", 1) is None

    many = {f"{prefix}{number}": str(number) for number in range(100)}
    assert client.set_many(many) == []
    assert client.get_many(many) == {key: value.encode() for key, value in many.items()}
    assert client.touch(prefix + "2", expire=-1) is True
    assert client.get(prefix + "2") is None
    assert client.delete(prefix + "3") is True
    assert client.delete(prefix + "3") is False
    assert client.delete_many(list(many)) is True

    # Without answers: the next answer must be to the next command that has one.
    client.set(key, "quiet", noreply=True)
    client.incr(key, 1, noreply=True)
    assert client.get(key) == b"quiet"
    assert b"curr_items" in client.stats()
    assert client.stats("settings")[b"item_size_max"] == 1 << 20

    # Objects, whose kinds are in the client's flags.
    objects = Client(("127.0.0.1", port), serde=pickle_serde, default_noreply=False)
    assert objects.set(key, {"a": [1, 2]}) is True
    assert objects.get(key) == {"a": [1, 2]}
    assert objects.set(key, 41) is True
    assert objects.get(key) == 41
    assert client.raw_command(f"mg {key} f s v", end_tokens=b"\r\n").startswith(b"VA 2 f2 s2")


for port in sys.argv[1:]:
    check(int(port))
print(f"pymemcache, {len(sys.argv) - 1} replicas")
