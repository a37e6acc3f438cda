// go-redis with its defaults against the ports that are given.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

func must(holds bool, format string, values ...any) {
	if !holds {
		panic(fmt.Sprintf(format, values...))
	}
}

func check(port string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	defer client.Close()
	prefix := fmt.Sprintf("go:%d:", time.Now().UnixNano())
	key := prefix + "key"

	must(client.Ping(ctx).Val() == "PONG", "PING")
	must(client.Set(ctx, key, "value", 0).Err() == nil, "SET")
	must(client.Get(ctx, key).Val() == "value", "GET")
	must(client.Get(ctx, prefix+"missing").Err() == redis.Nil, "GET of a missing key")
	must(client.IncrBy(ctx, prefix+"count", 5).Val() == 5, "INCRBY")

	must(client.HSet(ctx, prefix+"hash", "a", "1", "b", "2").Val() == 2, "HSET")
	all := client.HGetAll(ctx, prefix+"hash").Val()
	must(len(all) == 2 && all["b"] == "2", "HGETALL: %v", all)

	must(client.Expire(ctx, key, 100*time.Second).Val(), "EXPIRE")
	left := client.TTL(ctx, key).Val()
	must(left > 0 && left <= 100*time.Second, "TTL: %v", left)

	var got *redis.StringCmd
	change := func(transaction redis.Pipeliner) error {
		transaction.Set(ctx, key, "changed", 0)
		got = transaction.Get(ctx, key)
		return nil
	}
	watched := func(tx *redis.Tx) error {
		_, err := tx.TxPipelined(ctx, change)
		return err
	}
	err := client.Watch(ctx, watched, key)
	must(err == nil && got.Val() == "changed", "MULTI: %v", err)

	_, err = client.Pipelined(ctx, func(pipeline redis.Pipeliner) error {
		for n := range 200 {
			pipeline.Set(ctx, fmt.Sprintf("%smany:%d", prefix, n), n, 0)
		}
		return nil
	})
	must(err == nil, "pipeline: %v", err)
	found := map[string]bool{}
	scan := client.Scan(ctx, 0, prefix+"many:*", 17).Iterator()
	for scan.Next(ctx) {
		found[scan.Val()] = true
	}
	must(scan.Err() == nil && len(found) == 200, "SCAN: %d, %v", len(found), scan.Err())

	err = client.Do(ctx, "NOSUCHCOMMAND", "x").Err()
	must(err != nil && strings.Contains(err.Error(), "unknown command"), "unknown: %v", err)
	for name := range found {
		must(client.Del(ctx, name).Val() == 1, "DEL")
	}
}

func main() {
	for _, port := range os.Args[1:] {
		check(port)
	}
	fmt.Println("go-redis", redis.Version())
}
