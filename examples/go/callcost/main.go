// SPDX-License-Identifier: Apache-2.0

// Callcost runs the cases of benchmarks/call_cost/call_cost.py through the Go package, and one that only calls C: what
// cgo itself costs.
//
// usage: callcost lookup|miss|restore|pinned_hit|cgo COUNT
package main

import (
	"os"
	"runtime"
	"strconv"

	"kvstrata"
)

const tokens, rowBytes = 2048, 16

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(err error) { must(0, err) }

func open(ids []int32) *kvstrata.Namespace {
	cache := must(kvstrata.OpenCache(kvstrata.CacheOptions{CapacityBytes: 64 << 20}))
	layout := must(kvstrata.NewLayout(kvstrata.LayoutDesc{BlockTokens: 64, Streams: []kvstrata.Stream{{
		Kind: kvstrata.KVSTRATA_STREAM_ROWS, Role: kvstrata.KVSTRATA_ROLE_OTHER, Ratio: 1, RowBytes: rowBytes,
		Packing: kvstrata.KVSTRATA_PACKING_RAW}}}))
	identity := map[string][]byte{"model.weights": []byte("w"), "tenant": nil}
	space := must(cache.Namespace(layout, identity, kvstrata.NamespaceOptions{}))
	writer := must(space.Writer(kvstrata.WriterOptions{}))
	check(writer.SetSource(kvstrata.Buffer{Memory: kvstrata.NewMemory(tokens * rowBytes)}))
	check(writer.Advance(ids[:tokens], nil, tokens))
	must(writer.Commit(0, 0))
	writer.Close()
	return space
}

func restore(match *kvstrata.Match, rows *kvstrata.Memory) {
	plan := must(match.Plan(kvstrata.PlanOptions{}))
	defer plan.Close()
	check(plan.Start([]kvstrata.Buffer{{Memory: rows}}))
	if must(plan.Wait(1<<63)).UsableTokens != tokens {
		panic("not all restored")
	}
}

func pin(match *kvstrata.Match) {
	pinned := must(match.Pin())
	defer pinned.Close()
	if must(pinned.Info()).EndToken != tokens || len(must(pinned.Range(0)).Bytes) != tokens*rowBytes {
		panic("not all pinned")
	}
}

func main() {
	runtime.GOMAXPROCS(1)
	what, count := os.Args[1], must(strconv.Atoi(os.Args[2]))
	ids, others := make([]int32, tokens+1), make([]int32, tokens+1)
	for i := range ids {
		ids[i], others[i] = int32(i*3), 7
	}
	space, rows := open(ids), kvstrata.NewMemory(tokens*rowBytes)
	expected := uint64(tokens)
	if what == "miss" {
		ids, expected = others, 0
	}
	for i := 0; i < count; i++ {
		if what == "cgo" {
			kvstrata.ABIVersion()
			continue
		}
		match := must(space.Lookup(ids, kvstrata.LookupOptions{}))
		if what == "restore" {
			restore(match, rows)
		}
		if what == "pinned_hit" {
			pin(match)
		}
		if must(match.Info()).UsableTokens != expected {
			panic("another length")
		}
		match.Close()
	}
}
