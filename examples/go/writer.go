// SPDX-License-Identifier: Apache-2.0

package kvstrata

// #include "bridge.h"
import "C"

import "unsafe"

// WriterOptions is kvstrata_writer_options.
type WriterOptions struct {
	Match           *Match // the prompt that the sequence goes on with; may be nil
	Plan            *Plan  // the restore that brought the rows, when it has ended; may be nil
	Flags           uint32 // KVSTRATA_WRITER_*
	RestartMultiple uint32
	StartTokens     uint64
	WaitMs          uint64
	Priority        int32  // KVSTRATA_PRIORITY_* of the blocks stored
	TTLSeconds      uint32 // blocks stored are misses after it; 0 = for ever
}

// Writer stores one growing sequence. One goroutine at a time.
type Writer struct {
	raw     *C.kvstrata_writer
	sources map[uint32]*sharedMemory // kept until they are replaced or the writer is closed
}

// Writer opens a writer for one sequence.
func (n *Namespace) Writer(options WriterOptions) (*Writer, error) {
	a := newArena()
	defer a.free()
	o := (*C.kvstrata_writer_options)(a.alloc(C.sizeof_kvstrata_writer_options))
	o.struct_size = C.sizeof_kvstrata_writer_options
	o.flags, o.restart_multiple = C.uint32_t(options.Flags), C.uint32_t(options.RestartMultiple)
	o.start_tokens, o.wait_ms = C.uint64_t(options.StartTokens), C.uint64_t(options.WaitMs)
	o.priority, o.ttl_seconds = C.int32_t(options.Priority), C.uint32_t(options.TTLSeconds)
	if options.Plan != nil {
		o.plan = options.Plan.raw
	}
	var match *C.kvstrata_match
	if options.Match != nil {
		match = options.Match.raw
	}
	out := (**C.kvstrata_writer)(a.alloc(8))
	if err := a.check(C.kvstrata_writer_open(n.raw, match, o, out, a.err)); err != nil {
		return nil, err
	}
	return &Writer{*out, map[uint32]*sharedMemory{}}, nil
}

// SetSource says where a stream's rows are; again to replace it.
func (w *Writer) SetSource(source Buffer) error {
	a := newArena()
	defer a.free()
	c := (*C.kvstrata_buffer)(a.alloc(C.sizeof_kvstrata_buffer))
	if err := source.fill(a, c); err != nil {
		return err
	}
	if err := a.check(C.kvstrata_writer_set_source(w.raw, c, a.err)); err != nil {
		return err
	}
	if old := w.sources[source.Stream]; old != nil {
		old.release()
	}
	w.sources[source.Stream] = source.Memory.shared.retain()
	return nil
}

// Advance appends ids to the sequence, and says that the rows of its first computedLength tokens, and the state at
// computedLength, are in the sources.
func (w *Writer) Advance(ids []int32, keys []ExtraKey, computedLength uint64) error {
	a := newArena()
	defer a.free()
	return a.check(C.kvstrata_writer_advance(w.raw, a.tokens(ids, keys), C.uint64_t(computedLength), a.err))
}

// Snapshot takes a snapshot at the computed length now.
func (w *Writer) Snapshot() error {
	a := newArena()
	defer a.free()
	return a.check(C.kvstrata_writer_snapshot(w.raw, a.err))
}

// SnapshotPositions says where this prompt wants snapshots: cut prefill chunks there, Advance then takes them.
func (w *Writer) SnapshotPositions(prompt []int32) ([]uint64, error) {
	a := newArena()
	defer a.free()
	tokens := a.tokens(prompt, nil)
	count := (*C.uint64_t)(a.alloc(8))
	for capacity := 16; ; capacity = int(*count) {
		out := (*C.uint64_t)(a.alloc(uintptr(capacity) * 8))
		status := C.kvstrata_writer_snapshot_positions(w.raw, tokens, out, C.uint64_t(capacity), count, a.err)
		if status == C.KVSTRATA_E_BUFFER_TOO_SMALL {
			continue
		}
		if err := a.check(status); err != nil {
			return nil, err
		}
		return append([]uint64(nil), unsafe.Slice((*uint64)(unsafe.Pointer(out)), *count)...), nil
	}
}

// Truncate takes back the tokens from length on.
func (w *Writer) Truncate(length uint64) error {
	a := newArena()
	defer a.free()
	return a.check(C.kvstrata_writer_truncate(w.raw, C.uint64_t(length), a.err))
}

// Fork gives an independent writer at the same point, with the same sources until they are set anew.
func (w *Writer) Fork() (*Writer, error) {
	a := newArena()
	defer a.free()
	out := (**C.kvstrata_writer)(a.alloc(8))
	if err := a.check(C.kvstrata_writer_fork(w.raw, out, a.err)); err != nil {
		return nil, err
	}
	fork := &Writer{*out, map[uint32]*sharedMemory{}}
	for stream, memory := range w.sources {
		fork.sources[stream] = memory.retain()
	}
	return fork, nil
}

// Commit waits until everything accepted so far is stored and visible. flags: KVSTRATA_COMMIT_*.
func (w *Writer) Commit(flags uint32, timeoutMs uint64) (CommitInfo, error) {
	var out CommitInfo
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_writer_commit(w.raw, C.uint32_t(flags), C.uint64_t(timeoutMs), (*C.kvstrata_commit_info)(to), e)
	})
	return out, err
}

// Close ends the writer; what was accepted is still stored.
func (w *Writer) Close() {
	C.kvstrata_writer_destroy(w.raw)
	w.raw = nil
	for _, memory := range w.sources {
		memory.release()
	}
	w.sources = nil
}
