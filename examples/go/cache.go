// SPDX-License-Identifier: Apache-2.0

package kvstrata

// #include "bridge.h"
import "C"

import (
	"runtime/cgo"
	"unsafe"
)

// Cache is one store. Any goroutine may use it.
type Cache struct {
	raw *C.kvstrata_cache
}

// CacheOptions is kvstrata_cache_options; zero is every member's default.
type CacheOptions struct {
	Path                                                   string // "" and no Storage: in memory only
	Storage                                                Storage
	ReadOnly                                               bool
	CapacityBytes, SnapshotBytes, StagingBytes, LeaseBytes uint64
	LeaseMs, IOTimeoutMs                                   uint64
	IOThreads, MaxBlocks                                   uint32
	EvictionPolicy, Admission                              int32 // KVSTRATA_EVICT_*, KVSTRATA_ADMIT_*
	HighPercent, LowPercent                                uint32
	GhostBytes, KeepFreeBytes                              uint64
	Lane                                                   uint64 // of the store at Path; math.MaxUint64: the lowest that is free
	MemoryBytes, MemoryDirtyBytes                          uint64
	MemoryWrite, MemoryPromotion                           int32
}

// OpenCache opens or makes a store and rebuilds its index. A failed open leaves the storage with the caller.
func OpenCache(options CacheOptions) (*Cache, error) {
	a := newArena()
	defer a.free()
	c := (*C.kvstrata_cache_options)(a.alloc(C.sizeof_kvstrata_cache_options))
	c.struct_size = C.sizeof_kvstrata_cache_options
	if options.ReadOnly {
		c.flags = C.KVSTRATA_CACHE_READ_ONLY
	}
	if options.Path != "" {
		c.path = a.text(options.Path)
	}
	var handle cgo.Handle
	if options.Storage != nil {
		handle = cgo.NewHandle(options.Storage)
		table := (*C.kvstrata_storage)(a.alloc(C.sizeof_kvstrata_storage))
		*table = C.kvgo_storage(C.uintptr_t(handle), C.uint64_t(options.Storage.Capabilities()))
		c.storage = table
	}
	c.capacity_bytes, c.snapshot_bytes = C.uint64_t(options.CapacityBytes), C.uint64_t(options.SnapshotBytes)
	c.staging_bytes, c.lease_bytes = C.uint64_t(options.StagingBytes), C.uint64_t(options.LeaseBytes)
	c.lease_ms, c.io_timeout_ms = C.uint64_t(options.LeaseMs), C.uint64_t(options.IOTimeoutMs)
	c.io_threads, c.max_blocks = C.uint32_t(options.IOThreads), C.uint32_t(options.MaxBlocks)
	c.eviction_policy, c.admission = C.int32_t(options.EvictionPolicy), C.int32_t(options.Admission)
	c.high_percent, c.low_percent = C.uint32_t(options.HighPercent), C.uint32_t(options.LowPercent)
	c.ghost_bytes, c.keep_free_bytes = C.uint64_t(options.GhostBytes), C.uint64_t(options.KeepFreeBytes)
	c.lane = C.uint64_t(options.Lane)
	c.memory_bytes, c.memory_dirty_bytes = C.uint64_t(options.MemoryBytes), C.uint64_t(options.MemoryDirtyBytes)
	c.memory_write, c.memory_promotion = C.int32_t(options.MemoryWrite), C.int32_t(options.MemoryPromotion)
	out := (**C.kvstrata_cache)(a.alloc(8))
	if err := a.check(C.kvstrata_cache_open(c, out, a.err)); err != nil {
		if handle != 0 {
			handle.Delete()
		}
		return nil, err
	}
	return &Cache{*out}, nil
}

// Close closes the store (if Drain has not) and releases the handle.
func (c *Cache) Close() {
	C.kvstrata_cache_destroy(c.raw)
	c.raw = nil
}

// Drain is kvstrata_cache_close: waits for accepted writes and ends the threads; what was made from the cache answers
// KVSTRATA_E_INVALID_STATE afterwards.
func (c *Cache) Drain(timeoutMs uint64) (CloseInfo, error) {
	var out CloseInfo
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_cache_close(c.raw, C.uint64_t(timeoutMs), (*C.kvstrata_close_info)(to), e)
	})
	return out, err
}

// Stats is one set of counters since open, and gauges of now.
func (c *Cache) Stats() (Stats, error) {
	var out Stats
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_cache_stats(c.raw, (*C.kvstrata_stats)(to), e)
	})
	return out, err
}

// Events gives the events from `from` on that are still held, and the sequence to ask for next.
func (c *Cache) Events(from uint64, atMost int) ([]Event, uint64, error) {
	a := newArena()
	defer a.free()
	raw := (*Event)(a.alloc(uintptr(atMost) * C.sizeof_kvstrata_event))
	events := unsafe.Slice(raw, atMost)
	for i := range events {
		events[i].StructSize = C.sizeof_kvstrata_event
	}
	numbers := unsafe.Slice((*C.uint64_t)(a.alloc(16)), 2)
	err := a.check(C.kvstrata_cache_events(c.raw, C.uint64_t(from), (*C.kvstrata_event)(unsafe.Pointer(raw)),
		C.uint64_t(atMost), C.sizeof_kvstrata_event, &numbers[0], &numbers[1], a.err))
	if err != nil {
		return nil, 0, err
	}
	return append([]Event(nil), events[:numbers[0]]...), uint64(numbers[1]), nil
}

// Verify reads and checks every record. progress (may be nil) returns false to end it with KVSTRATA_E_CANCELLED.
func (c *Cache) Verify(progress func(done, total uint64) bool) (VerifyInfo, error) {
	var handle cgo.Handle
	if progress != nil {
		handle = cgo.NewHandle(progress)
		defer handle.Delete()
	}
	var out VerifyInfo
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvgo_verify(c.raw, C.uintptr_t(handle), (*C.kvstrata_verify_info)(to), e)
	})
	return out, err
}

// Trim evicts until at most targetBytes are held or only leased records are left; gives the bytes held.
func (c *Cache) Trim(targetBytes uint64) (uint64, error) {
	return number(func(out *C.uint64_t, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_cache_trim(c.raw, C.uint64_t(targetBytes), out, e)
	})
}

// Sync makes everything stored before the call durable.
func (c *Cache) Sync() error {
	a := newArena()
	defer a.free()
	return a.check(C.kvstrata_cache_sync(c.raw, a.err))
}

// PurgeForeign removes the stored namespaces that no open handle uses; gives the bytes freed.
func (c *Cache) PurgeForeign() (uint64, error) {
	return number(func(out *C.uint64_t, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_cache_purge_foreign(c.raw, out, e)
	})
}

// Namespace is identity and layout inside a cache: the wall between models and tenants. Any goroutine may use it.
type Namespace struct {
	raw *C.kvstrata_namespace
}

// NamespaceOptions is kvstrata_namespace_options without layout and identity.
type NamespaceOptions struct {
	MustExist                           bool
	SnapshotPolicy, SnapshotEveryTokens uint32
	Compress                            uint32 // KVSTRATA_COMPRESS_*
	Pack                                uint32 // KVSTRATA_PACK_*
}

// Namespace opens the namespace of this identity and layout, or makes it.
func (c *Cache) Namespace(layout *Layout, identity map[string][]byte, options NamespaceOptions) (*Namespace, error) {
	a := newArena()
	defer a.free()
	o := (*C.kvstrata_namespace_options)(a.alloc(C.sizeof_kvstrata_namespace_options))
	o.struct_size = C.sizeof_kvstrata_namespace_options
	if options.MustExist {
		o.flags = C.KVSTRATA_NAMESPACE_MUST_EXIST
	}
	o.layout = layout.raw
	o.snapshot_policy = C.uint32_t(options.SnapshotPolicy)
	o.snapshot_every_tokens = C.uint32_t(options.SnapshotEveryTokens)
	o.compress = C.uint32_t(options.Compress)
	o.pack = C.uint32_t(options.Pack)
	o.fields = (*C.kvstrata_identity_field)(a.alloc(uintptr(len(identity)) * C.sizeof_kvstrata_identity_field))
	fields := unsafe.Slice(o.fields, len(identity))
	for name, value := range identity {
		field := &fields[o.field_count]
		field.struct_size = C.sizeof_kvstrata_identity_field
		field.name, field.bytes, field.size = a.text(name), a.bytes(value), C.uint64_t(len(value))
		o.field_count++
	}
	out := (**C.kvstrata_namespace)(a.alloc(8))
	if err := a.check(C.kvstrata_namespace_open(c.raw, o, out, a.err)); err != nil {
		return nil, err
	}
	return &Namespace{*out}, nil
}

// Close releases the handle.
func (n *Namespace) Close() {
	C.kvstrata_namespace_destroy(n.raw)
	n.raw = nil
}

// Info describes the namespace.
func (n *Namespace) Info() (NamespaceInfo, error) {
	var out NamespaceInfo
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_namespace_get_info(n.raw, (*C.kvstrata_namespace_info)(to), e)
	})
	return out, err
}

// Drop forgets everything stored here, durably where the storage can.
func (n *Namespace) Drop() error {
	a := newArena()
	defer a.free()
	return a.check(C.kvstrata_namespace_drop(n.raw, a.err))
}

// ExtraKey is what besides its token id makes a position's rows what they are.
type ExtraKey struct {
	Position uint64
	Type     uint32
	Bytes    []byte
}

func (a *arena) tokens(ids []int32, keys []ExtraKey) *C.kvstrata_tokens {
	out := (*C.kvstrata_tokens)(a.alloc(C.sizeof_kvstrata_tokens))
	out.struct_size = C.sizeof_kvstrata_tokens
	block := a.alloc(uintptr(len(ids)) * 4)
	copy(unsafe.Slice((*int32)(block), len(ids)), ids)
	out.ids, out.count = (*C.int32_t)(block), C.uint64_t(len(ids))
	out.extra_keys = (*C.kvstrata_extra_key)(a.alloc(uintptr(len(keys)) * C.sizeof_kvstrata_extra_key))
	out.extra_key_count = C.uint64_t(len(keys))
	array := unsafe.Slice(out.extra_keys, len(keys))
	for i, key := range keys {
		array[i].struct_size = C.sizeof_kvstrata_extra_key
		array[i]._type = C.uint32_t(key.Type)
		array[i].position = C.uint64_t(key.Position)
		array[i].bytes, array[i].size = a.bytes(key.Bytes), C.uint64_t(len(key.Bytes))
	}
	return out
}

// LookupOptions is kvstrata_lookup_options.
type LookupOptions struct {
	ExtraKeys                                     []ExtraKey
	Flags                                         uint32
	HeldTokens                                    uint64
	AllowedModes, RestartMultiple                 uint32
	MinGainTokens                                 uint64
	PrefillTokensPerSecond, StorageBytesPerSecond float64
	LeaseMs                                       uint64
}

// Match is one lookup's result and the lease on what it promises. One goroutine at a time.
type Match struct {
	raw *C.kvstrata_match
}

// Lookup finds the longest stored prefix; always a match, also for a miss. Pure memory, no I/O.
func (n *Namespace) Lookup(ids []int32, options LookupOptions) (*Match, error) {
	a := newArena()
	defer a.free()
	o := (*C.kvstrata_lookup_options)(a.alloc(C.sizeof_kvstrata_lookup_options))
	o.struct_size = C.sizeof_kvstrata_lookup_options
	o.flags, o.held_tokens = C.uint32_t(options.Flags), C.uint64_t(options.HeldTokens)
	o.allowed_modes, o.restart_multiple = C.uint32_t(options.AllowedModes), C.uint32_t(options.RestartMultiple)
	o.min_gain_tokens, o.lease_ms = C.uint64_t(options.MinGainTokens), C.uint64_t(options.LeaseMs)
	o.prefill_tokens_per_second = C.double(options.PrefillTokensPerSecond)
	o.storage_bytes_per_second = C.double(options.StorageBytesPerSecond)
	out := (**C.kvstrata_match)(a.alloc(8))
	if err := a.check(C.kvstrata_lookup(n.raw, a.tokens(ids, options.ExtraKeys), o, out, a.err)); err != nil {
		return nil, err
	}
	return &Match{*out}, nil
}

// Close ends the lease, or leaves it to the plans made from the match.
func (m *Match) Close() {
	C.kvstrata_match_destroy(m.raw)
	m.raw = nil
}

// Info describes the match.
func (m *Match) Info() (MatchInfo, error) {
	var out MatchInfo
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_match_get_info(m.raw, (*C.kvstrata_match_info)(to), e)
	})
	return out, err
}

// Renew prolongs the lease to leaseMs from now; 0 = the cache's default.
func (m *Match) Renew(leaseMs uint64) error {
	a := newArena()
	defer a.free()
	return a.check(C.kvstrata_match_renew(m.raw, C.uint64_t(leaseMs), a.err))
}

// Limit plans anew with usable tokens <= maxUsableTokens.
func (m *Match) Limit(maxUsableTokens uint64) error {
	a := newArena()
	defer a.free()
	return a.check(C.kvstrata_match_limit(m.raw, C.uint64_t(maxUsableTokens), a.err))
}

// FirstDifference is the position of the first token that differs from the nearest stored continuation; math.MaxUint64
// when there is none. Reads storage.
func (m *Match) FirstDifference() (uint64, error) {
	return number(func(out *C.uint64_t, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_match_first_difference(m.raw, out, e)
	})
}

// Pin is a match's rows in memory: valid and unchanged until Close, whatever becomes of match and cache. Any goroutine may
// use it.
type Pin struct {
	raw *C.kvstrata_pin
}

// PinRange is consecutive rows of one stream where they lie.
type PinRange struct {
	Stream   uint32
	FirstRow uint64
	Rows     uint64 // 0: the stream is optional, and these blocks were stored without it
	// The rows back to back: the library's memory, not to be written, and not to be read after the pin's Close.
	Bytes []byte
}

// Pin pins the rows of the leading blocks of what a plan would read, as far as they are in memory: no I/O, no copy.
func (m *Match) Pin() (*Pin, error) {
	var out *C.kvstrata_pin
	failure := newFailure()
	if err := failureOf(C.kvstrata_match_pin(m.raw, &out, failure), failure); err != nil {
		return nil, err
	}
	return &Pin{out}, nil
}

// Close gives the rows up: no Bytes of a range may be read afterwards.
func (p *Pin) Close() {
	C.kvstrata_pin_destroy(p.raw)
	p.raw = nil
}

// Info says which blocks are pinned, and in how many ranges.
func (p *Pin) Info() (PinInfo, error) {
	var out PinInfo
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_pin_get_info(p.raw, (*C.kvstrata_pin_info)(to), e)
	})
	return out, err
}

// Range gives range `index` of Info's RangeCount, in the order of the blocks, and for the same blocks by layer.
func (p *Pin) Range(index uint64) (PinRange, error) {
	out := C.kvstrata_pin_range{struct_size: C.sizeof_kvstrata_pin_range}
	failure := newFailure()
	if err := failureOf(C.kvstrata_pin_get_range(p.raw, C.uint64_t(index), &out, failure), failure); err != nil {
		return PinRange{}, err
	}
	bytes := unsafe.Slice((*byte)(out.data), int(out.bytes))
	return PinRange{uint32(out.stream), uint64(out.first_row), uint64(out.rows), bytes}, nil
}

// Agree limits the matches of one prompt, one per rank, to the largest length that all of them reach.
func Agree(matches ...*Match) (uint64, error) {
	a := newArena()
	defer a.free()
	array := (**C.kvstrata_match)(a.alloc(uintptr(len(matches)) * 8))
	for i, one := range matches {
		unsafe.Slice(array, len(matches))[i] = one.raw
	}
	out := (*C.uint64_t)(a.alloc(8))
	err := a.check(C.kvstrata_match_agree(array, C.uint64_t(len(matches)), out, a.err))
	return uint64(*out), err
}
