"""redis-py with its defaults against the ports that are given."""

import sys
import time

import redis


def check(port):
    client = redis.Redis(port=port, decode_responses=True)
    prefix = f"python:{time.time_ns()}:"
    key = prefix + "key"

    assert client.ping()
    assert client.set(key, "value") is True
    assert client.get(key) == "value"
    assert client.get(prefix + "missing") is None
    assert client.set(key, "other", nx=True) is None
    assert client.incr(prefix + "count", 5) == 5
    assert client.append(key, "!") == 6

    assert client.hset(prefix + "hash", mapping={"a": "1", "b": "2"}) == 2
    assert client.hgetall(prefix + "hash") == {"a": "1", "b": "2"}
    assert client.hincrby(prefix + "hash", "a", 4) == 5

    assert client.expire(key, 100) is True
    assert 0 < client.ttl(key) <= 100
    assert client.set(prefix + "short", "x", px=30)
    time.sleep(0.1)
    assert client.get(prefix + "short") is None

    with client.pipeline(transaction=True) as transaction:
        transaction.watch(key)
        transaction.multi()
        transaction.set(key, "changed")
        transaction.get(key)
        assert transaction.execute() == [True, "changed"]
    with client.pipeline(transaction=True) as transaction:
        transaction.watch(key)
        client.set(key, "meanwhile")
        transaction.multi()
        transaction.set(key, "lost")
        try:
            transaction.execute()
            raise AssertionError("a transaction ignored its WATCH")
        except redis.WatchError:
            pass

    with client.pipeline(transaction=False) as pipeline:
        for number in range(200):
            pipeline.set(f"{prefix}many:{number}", number)
        assert all(pipeline.execute())
    found = set(client.scan_iter(match=prefix + "many:*", count=17))
    assert found == {f"{prefix}many:{number}" for number in range(200)}, len(found)
    assert client.mget(f"{prefix}many:7", f"{prefix}many:8") == ["7", "8"]

    try:
        client.execute_command("NOSUCHCOMMAND", "x")
        raise AssertionError("an unknown command was accepted")
    except redis.ResponseError as error:
        assert "unknown command" in str(error), error
    assert client.delete(*client.keys(prefix + "*")) > 200


for argument in sys.argv[1:]:
    check(int(argument))
print("redis-py", redis.__version__)
