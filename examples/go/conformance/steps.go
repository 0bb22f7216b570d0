// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"kvstrata"
)

const guard, untouched = 16, 0xEE

type space struct {
	*kvstrata.Namespace
	layout *kvstrata.Layout
}

type found struct {
	*kvstrata.Match
	layout *kvstrata.Layout
}

// restore is a plan with the memory that it fills: guard bytes, the rows, guard bytes.
type restore struct {
	*kvstrata.Plan
	layout   *kvstrata.Layout
	segments []kvstrata.Segment
	memory   []*kvstrata.Memory
	mark     uint64
}

func (r *restore) Close() {
	r.Plan.Close()
	for _, memory := range r.memory {
		memory.Free()
	}
}

// testCase holds the handles of one case by name.
type testCase struct {
	folder  string
	stores  map[string]*store
	layouts map[string]*kvstrata.Layout
	caches  map[string]*kvstrata.Cache
	spaces  map[string]space
	matches map[string]found
	plans   map[string]*restore
	pins    map[string]*kvstrata.Pin
}

func newCase(folder string) *testCase {
	return &testCase{folder, map[string]*store{}, map[string]*kvstrata.Layout{}, map[string]*kvstrata.Cache{},
		map[string]space{}, map[string]found{}, map[string]*restore{}, map[string]*kvstrata.Pin{}}
}

func (c *testCase) end() {
	for _, one := range c.stores {
		one.letGo() // nothing waits for ever
	}
	for name := range c.pins {
		c.release(name)
	}
	for name := range c.plans {
		c.release(name)
	}
	for name := range c.matches {
		c.release(name)
	}
	for name := range c.spaces {
		c.release(name)
	}
	for name := range c.caches {
		c.release(name)
	}
	for name := range c.layouts {
		c.release(name)
	}
}

func (c *testCase) release(name string) {
	if one, ok := c.pins[name]; ok {
		one.Close()
		delete(c.pins, name)
	}
	if one, ok := c.plans[name]; ok {
		one.Close()
		delete(c.plans, name)
	}
	if one, ok := c.matches[name]; ok {
		one.Close()
		delete(c.matches, name)
	}
	if one, ok := c.spaces[name]; ok {
		one.Close()
		delete(c.spaces, name)
	}
	if one, ok := c.caches[name]; ok {
		one.Close()
		delete(c.caches, name)
	}
	if one, ok := c.layouts[name]; ok {
		one.Close()
		delete(c.layouts, name)
	}
}

func (c *testCase) run(s *step) string {
	answer, err := c.answer(s)
	out := "status=OK"
	var failure *kvstrata.Error
	if errors.As(err, &failure) {
		out = "status=" + strings.TrimPrefix(kvstrata.StatusName(failure.Code), "KVSTRATA_")
	} else if err != nil {
		panic(err)
	}
	for _, key := range s.asked {
		switch {
		case failure == nil:
			out += fmt.Sprintf(" %s=%s", key, answer(key))
		case key == "field":
			out += " field=" + failure.Field
		default:
			out += " " + key + "=-"
		}
	}
	return out
}

func (c *testCase) answer(s *step) (answers, error) {
	switch s.operation {
	case "layout":
		return c.layout(s)
	case "storage", "hold", "let_go", "fail", "damage", "wipe", "swap", "look":
		return c.storage(s), nil
	case "cache":
		return c.openCache(s)
	case "stats", "close", "trim", "purge", "sync", "verify", "events":
		return c.cache(s)
	case "namespace", "info", "drop":
		return c.namespace(s)
	case "store", "positions":
		return c.store(s)
	case "lookup":
		return c.lookup(s)
	case "limit", "renew", "agree", "difference":
		return c.match(s)
	case "plan":
		return c.plan(s)
	case "start", "wait", "poll", "cancel":
		return c.restore(s)
	case "pin":
		return c.pin(s)
	case "pinned":
		return c.pinned(s)
	case "release":
		c.release(s.name)
		return words(), nil
	case "status":
		return words("name", kvstrata.StatusName(int32(s.number("code")))), nil
	case "version":
		return words("abi", kvstrata.ABIVersion(), "format", kvstrata.FormatVersion()), nil
	}
	panic("no step " + s.operation)
}

func makeLayout(s *step) (*kvstrata.Layout, error) {
	options := kvstrata.PresetOptions{BlockTokens: uint32(s.number("block_tokens")), Rows: int32(s.number("rows")),
		IndexKeys: int32(s.number("index_keys")), IncludeDraft: s.number("include_draft") != 0}
	if value, ok := s.value("preset"); ok {
		return kvstrata.LayoutFromPreset(value, options)
	}
	if value, ok := s.value("gqa"); ok {
		n := numbers(value)
		return kvstrata.LayoutGQA(uint32(n[0]), uint32(n[1]), uint32(n[2]), uint32(n[3]), uint32(n[4]))
	}
	if value, ok := s.value("mla"); ok {
		n := numbers(value)
		return kvstrata.LayoutMLA(uint32(n[0]), uint32(n[1]), uint32(n[2]))
	}
	if _, ok := s.value("opaque"); ok {
		return kvstrata.LayoutOpaque(uint32(s.number("opaque")))
	}
	if value, ok := s.value("text"); ok {
		return kvstrata.LayoutFromText(plain(value))
	}
	if value, ok := s.value("config"); ok {
		return kvstrata.LayoutFromConfig(plain(value), options)
	}
	family, rest, _ := strings.Cut(s.text("create"), ",")
	n := numbers(rest)
	desc := kvstrata.LayoutDesc{Family: family, BlockTokens: uint32(n[0]), Profile: int32(n[1]), ReplayMode: int32(n[2]),
		ReplayWindow: uint32(n[3]), ReplayLayers: uint32(n[4])}
	for _, one := range s.given {
		if one.key == "stream" {
			n := numbers(one.value)
			desc.Streams = append(desc.Streams, kvstrata.Stream{Kind: int32(n[0]), Role: int32(n[1]), Layer: uint32(n[2]),
				Ratio: uint32(n[3]), RowBytes: uint32(n[4]), StateRows: uint32(n[5]), Packing: int32(n[6]), Flags: uint32(n[7])})
		}
	}
	return kvstrata.NewLayout(desc)
}

func (c *testCase) layout(s *step) (answers, error) {
	layout, err := makeLayout(s)
	if err != nil {
		return nil, err
	}
	c.release(s.name)
	c.layouts[s.name] = layout
	info, err := layout.Info()
	if err != nil {
		return nil, err
	}
	return members(info, func(key string) string {
		kind, rest, _ := strings.Cut(key, ":")
		var number uint64
		var err error
		switch kind {
		case "text":
			text, err := layout.Text()
			if err != nil {
				panic(err)
			}
			return escaped(text)
		case "snapshot_bytes":
			number, err = layout.SnapshotBytes(parse(rest))
		case "rows":
			number, err = layout.RowsAt(uint32(numbers(rest)[0]), numbers(rest)[1])
		default:
			return "?"
		}
		if err != nil {
			panic(err)
		}
		return fmt.Sprint(number)
	}), nil
}

func (c *testCase) storage(s *step) answers {
	if s.operation == "storage" {
		c.stores[s.name] = &store{capabilities: s.number("capabilities"), failing: map[string]int32{}}
		return words()
	}
	one := c.stores[s.name]
	if s.operation == "let_go" {
		one.letGo()
		return words()
	}
	one.mutex.Lock()
	defer one.mutex.Unlock()
	switch s.operation {
	case "hold":
		one.holdPuts, one.holdGets = s.text("kind") == "put", s.text("kind") == "get"
	case "fail":
		one.failing[s.text("call")] = int32(s.number("code"))
	case "damage":
		for _, record := range one.records {
			if len(record.payload) >= int(s.number("bytes")) {
				record.payload[len(record.payload)-1] ^= 1
			}
		}
	case "wipe":
		one.records = nil
	case "swap":
		a, b := &one.records[len(one.records)-2], &one.records[len(one.records)-1]
		a.payload, b.payload = b.payload, a.payload
	}
	return words("records", len(one.records), "destroyed", one.destroyed, "held", len(one.held))
}

func (c *testCase) openCache(s *step) (answers, error) {
	options := kvstrata.CacheOptions{ReadOnly: s.number("read_only") != 0, CapacityBytes: s.number("capacity_bytes"),
		SnapshotBytes: s.number("snapshot_bytes"), StagingBytes: s.number("staging_bytes"), LeaseBytes: s.number("lease_bytes"),
		LeaseMs: s.number("lease_ms"), IOTimeoutMs: s.number("io_timeout_ms"), IOThreads: uint32(s.number("io_threads")),
		MaxBlocks: uint32(s.number("max_blocks")), EvictionPolicy: int32(s.number("eviction_policy")),
		Admission: int32(s.number("admission")), HighPercent: uint32(s.number("high_percent")),
		LowPercent: uint32(s.number("low_percent")), GhostBytes: s.number("ghost_bytes"), KeepFreeBytes: s.number("keep_free_bytes"),
		Lane: s.number("lane"),
		MemoryBytes: s.number("memory_bytes"), MemoryDirtyBytes: s.number("memory_dirty_bytes"),
		MemoryWrite: int32(s.number("memory_write")), MemoryPromotion: int32(s.number("memory_promotion"))}
	if path, ok := s.value("path"); ok {
		options.Path = filepath.Join(c.folder, path)
	}
	if name, ok := s.value("storage"); ok {
		options.Storage = c.stores[name]
	}
	cache, err := kvstrata.OpenCache(options)
	if err == nil {
		c.release(s.name)
		c.caches[s.name] = cache
	}
	return words(), err
}

func joined[E, T any](items []E, of func(item E) T) string {
	var out []string
	for _, item := range items {
		out = append(out, fmt.Sprint(of(item)))
	}
	return strings.Join(out, ",")
}

func (c *testCase) cache(s *step) (answers, error) {
	cache := c.caches[s.name]
	switch s.operation {
	case "stats":
		stats, err := cache.Stats()
		return members(stats, nil), err
	case "close":
		info, err := cache.Drain(s.number("timeout"))
		return members(info, nil), err
	case "trim":
		held, err := cache.Trim(s.number("bytes"))
		return words("held", held), err
	case "purge":
		bytes, err := cache.PurgeForeign()
		return words("bytes", bytes), err
	case "sync":
		return words(), cache.Sync()
	case "verify":
		var progress func(done, total uint64) bool
		if s.number("stop") != 0 {
			progress = func(uint64, uint64) bool { return false }
		}
		info, err := cache.Verify(progress)
		return members(info, nil), err
	}
	events, next, err := cache.Events(s.number("from"), 64)
	return words("count", len(events), "next", next,
		"kinds", joined(events, func(event kvstrata.Event) int32 { return event.Kind }),
		"positions", joined(events, func(event kvstrata.Event) uint64 { return event.Position }),
		"digests", joined(events, func(event kvstrata.Event) string { return hex.EncodeToString(event.Digest[:]) })), err
}

func (c *testCase) namespace(s *step) (answers, error) {
	if s.operation == "drop" {
		return words(), c.spaces[s.name].Drop()
	}
	if s.operation == "namespace" {
		identity := map[string][]byte{}
		for _, name := range []string{"model.weights", "model.quantization", "rope", "packing", "adapter",
			"engine.state_version", "kernel.numerics", "tenant"} {
			identity[name] = []byte("kvstrata " + name)
		}
		for _, one := range s.given {
			if name := strings.TrimPrefix(one.key, "set."); name != one.key {
				identity[name] = []byte(plain(one.value))
			} else if name := strings.TrimPrefix(one.key, "drop."); name != one.key {
				delete(identity, name)
			}
		}
		layout := c.layouts[s.text("layout")]
		made, err := c.caches[s.text("cache")].Namespace(layout, identity, kvstrata.NamespaceOptions{
			MustExist: s.number("must_exist") != 0, SnapshotPolicy: uint32(s.number("policy")),
			SnapshotEveryTokens: uint32(s.number("every")), Compress: uint32(s.number("compress")),
			Pack: uint32(s.number("pack"))})
		if err != nil {
			return nil, err
		}
		c.release(s.name)
		c.spaces[s.name] = space{made, layout}
	}
	info, err := c.spaces[s.name].Info()
	return members(info, nil), err
}

func setSources(writer *kvstrata.Writer, layout *kvstrata.Layout, s *step, position uint64) error {
	info, err := layout.Info()
	if err != nil {
		return err
	}
	for index := uint32(0); index < info.StreamCount; index++ {
		stream, err := layout.Stream(index)
		if err != nil {
			return err
		}
		at, rows := uint64(0), position/uint64(stream.Ratio)
		if stream.Kind != kvstrata.KVSTRATA_STREAM_ROWS {
			at = position
			if rows, err = layout.RowsAt(index, position); err != nil {
				return err
			}
		}
		rowBytes := uint64(stream.RowBytes)
		if rowBytes == 0 {
			rowBytes = s.numberOr("opaque", 100)
		}
		memory := kvstrata.NewMemory(int(rows * rowBytes))
		fill(memory.Bytes(), s.number("mark"), uint64(index), at, 0, rows, rowBytes)
		err = writer.SetSource(kvstrata.Buffer{Stream: index, Memory: memory})
		memory.Free() // the writer keeps it
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *testCase) store(s *step) (answers, error) {
	options := kvstrata.WriterOptions{Flags: uint32(s.number("flags")), RestartMultiple: uint32(s.number("restart"))}
	begin := uint64(0)
	if name, ok := s.value("match"); ok {
		options.Match = c.matches[name].Match
		info, err := options.Match.Info()
		if err != nil {
			return nil, err
		}
		begin = info.UsableTokens
	}
	one := c.spaces[s.name]
	writer, err := one.Writer(options)
	if err != nil {
		return nil, err
	}
	defer writer.Close()
	ids := tokensOf(s.text("tokens"))
	if s.operation == "positions" {
		positions, err := writer.SnapshotPositions(ids)
		return words("positions", strings.ReplaceAll(strings.Trim(fmt.Sprint(positions), "[]"), " ", ",")), err
	}
	stops := []uint64{uint64(len(ids))}
	if value, ok := s.value("at"); ok {
		stops = numbers(value)
	}
	for _, position := range stops {
		if err := setSources(writer, one.layout, s, position); err != nil {
			return nil, err
		}
		if err := writer.Advance(ids[begin:position], nil, position); err != nil {
			return nil, err
		}
		begin = position
		if s.number("snapshot") != 0 {
			if err := writer.Snapshot(); err != nil {
				return nil, err
			}
		}
	}
	flags := uint32(0)
	if s.number("durable") != 0 {
		flags |= kvstrata.KVSTRATA_COMMIT_DURABLE
	}
	if s.number("output_end") != 0 {
		flags |= kvstrata.KVSTRATA_COMMIT_OUTPUT_END
	}
	info, err := writer.Commit(flags, 0)
	return members(info, nil), err
}

func (c *testCase) lookup(s *step) (answers, error) {
	options := kvstrata.LookupOptions{Flags: uint32(s.number("flags")), HeldTokens: s.number("held"),
		AllowedModes: uint32(s.number("modes")), RestartMultiple: uint32(s.number("restart")),
		MinGainTokens: s.number("min_gain"), PrefillTokensPerSecond: s.real("prefill"),
		StorageBytesPerSecond: s.real("rate"), LeaseMs: s.number("lease_ms")}
	for _, one := range s.given {
		if one.key == "key" {
			parts := strings.SplitN(one.value, ",", 3)
			options.ExtraKeys = append(options.ExtraKeys, kvstrata.ExtraKey{Position: parse(parts[0]),
				Type: uint32(parse(parts[1])), Bytes: []byte(parts[2])})
		}
	}
	within := c.spaces[s.text("namespace")]
	match, err := within.Lookup(tokensOf(s.text("tokens")), options)
	if err != nil {
		return nil, err
	}
	c.release(s.name)
	c.matches[s.name] = found{match, within.layout}
	info, err := match.Info()
	return members(info, nil), err
}

func (c *testCase) match(s *step) (answers, error) {
	one := c.matches[s.name]
	switch s.operation {
	case "limit":
		if err := one.Limit(s.number("tokens")); err != nil {
			return nil, err
		}
		info, err := one.Info()
		return members(info, nil), err
	case "renew":
		return words(), one.Renew(s.number("ms"))
	case "agree":
		all := []*kvstrata.Match{one.Match}
		for _, name := range strings.Split(s.text("with"), ",") {
			all = append(all, c.matches[name].Match)
		}
		usable, err := kvstrata.Agree(all...)
		return words("usable", usable), err
	}
	position, err := one.FirstDifference()
	if position == math.MaxUint64 {
		return words("position", "none"), err
	}
	return words("position", position), err
}

func (c *testCase) plan(s *step) (answers, error) {
	of := c.matches[s.text("match")]
	plan, err := of.Plan(kvstrata.PlanOptions{Flags: uint32(s.number("flags")), TimeoutMs: s.number("timeout")})
	if err != nil {
		return nil, err
	}
	c.release(s.name)
	one := &restore{Plan: plan, layout: of.layout}
	c.plans[s.name] = one
	if one.segments, err = plan.Segments(); err != nil {
		return nil, err
	}
	bytes := uint64(0)
	for _, segment := range one.segments {
		bytes += segment.Bytes
		memory := kvstrata.NewMemory(int(segment.Bytes) + 2*guard)
		for i := range memory.Bytes() {
			memory.Bytes()[i] = untouched
		}
		one.memory = append(one.memory, memory)
	}
	return words("segments", len(one.segments), "bytes", bytes), nil
}

func (r *restore) isRows(stream uint32) bool {
	info, err := r.layout.Stream(stream)
	return err == nil && info.Kind == kvstrata.KVSTRATA_STREAM_ROWS
}

func (r *restore) start(s *step) error {
	r.mark = s.number("mark")
	var buffers []kvstrata.Buffer
	for i, segment := range r.segments {
		buffer := kvstrata.Buffer{Stream: segment.Stream, Memory: r.memory[i], Offset: guard, Size: int(segment.Bytes)}
		if i == 0 {
			buffer.Size -= int(s.number("short"))
		}
		if r.isRows(segment.Stream) {
			buffer.FirstRow = segment.FirstRow
		}
		buffers = append(buffers, buffer)
	}
	return r.Start(buffers[:len(buffers)-int(s.number("leave_out"))])
}

func (r *restore) wrong(snapshotPosition uint64) int {
	count := 0
	for i, segment := range r.segments {
		at, first := snapshotPosition, uint64(0)
		if r.isRows(segment.Stream) {
			at, first = 0, segment.FirstRow
		}
		memory := r.memory[i].Bytes()
		expected := make([]byte, len(memory))
		for j := range expected {
			expected[j] = untouched
		}
		fill(expected[guard:], r.mark, uint64(segment.Stream), at, first, segment.Rows, segment.Bytes/segment.Rows)
		for j := range expected {
			if expected[j] != memory[j] {
				count++
			}
		}
	}
	return count
}

func (c *testCase) restore(s *step) (answers, error) {
	one := c.plans[s.name]
	switch s.operation {
	case "start":
		return words(), one.start(s)
	case "cancel":
		one.Cancel()
		return words(), nil
	case "poll":
		result, err := one.Poll()
		return members(result, nil), err
	}
	result, err := one.Wait(s.numberOr("timeout", kvstrata.NoTimeout))
	return members(result, func(key string) string {
		switch key {
		case "wrong":
			return fmt.Sprint(one.wrong(result.SnapshotPosition))
		case "plan_status":
			return fmt.Sprint(result.Status)
		}
		return "?"
	}), err
}

func (c *testCase) pin(s *step) (answers, error) {
	pin, err := c.matches[s.text("match")].Pin()
	if err != nil {
		return nil, err
	}
	c.release(s.name)
	c.pins[s.name] = pin
	info, err := pin.Info()
	return members(info, nil), err
}

func (c *testCase) pinned(s *step) (answers, error) {
	pin := c.pins[s.name]
	info, err := pin.Info()
	if err != nil {
		return nil, err
	}
	ranges := make([]kvstrata.PinRange, info.RangeCount)
	bytes, wrong := 0, 0
	for i := range ranges {
		one, err := pin.Range(uint64(i))
		if err != nil {
			return nil, err
		}
		ranges[i] = one
		bytes += len(one.Bytes)
		if one.Rows == 0 {
			continue
		}
		expected := make([]byte, len(one.Bytes))
		fill(expected, s.number("mark"), uint64(one.Stream), 0, one.FirstRow, one.Rows, uint64(len(expected))/one.Rows)
		for j := range expected {
			if expected[j] != one.Bytes[j] {
				wrong++
			}
		}
	}
	return words("streams", joined(ranges, func(one kvstrata.PinRange) uint32 { return one.Stream }),
		"first_rows", joined(ranges, func(one kvstrata.PinRange) uint64 { return one.FirstRow }),
		"rows", joined(ranges, func(one kvstrata.PinRange) uint64 { return one.Rows }),
		"bytes", bytes, "wrong", wrong), nil
}
