// SPDX-License-Identifier: Apache-2.0

package kvstrata

// #include "bridge.h"
import "C"

import (
	"runtime/cgo"
	"unsafe"
)

// NoTimeout waits without a limit of its own.
const NoTimeout = ^uint64(0)

// PlanOptions is kvstrata_plan_options.
type PlanOptions struct {
	Flags     uint32 // KVSTRATA_PLAN_EARLY_RELEASE
	Streams   []uint32
	TimeoutMs uint64
	// Called on a thread of the library; may only signal. False cancels.
	Signal func(layersReady uint64, state int32) bool
}

// Plan is one restore: Start, then Wait, then run the tokens from ReplayFrom on. Poll, Wait and Cancel may be called by
// any goroutine, the rest by one at a time.
type Plan struct {
	raw    *C.kvstrata_plan
	signal cgo.Handle
	memory []*sharedMemory // of the destinations, kept until the C plan has gone
}

// Plan makes a restore of what the match promises; the plan keeps the lease.
func (m *Match) Plan(options PlanOptions) (*Plan, error) {
	a := newArena()
	defer a.free()
	o := (*C.kvstrata_plan_options)(a.alloc(C.sizeof_kvstrata_plan_options))
	o.struct_size = C.sizeof_kvstrata_plan_options
	o.flags, o.timeout_ms = C.uint32_t(options.Flags), C.uint64_t(options.TimeoutMs)
	if len(options.Streams) != 0 {
		streams := a.alloc(uintptr(len(options.Streams)) * 4)
		copy(unsafe.Slice((*uint32)(streams), len(options.Streams)), options.Streams)
		o.streams, o.stream_count = (*C.uint32_t)(streams), C.uint64_t(len(options.Streams))
	}
	plan := &Plan{}
	if options.Signal != nil {
		plan.signal = cgo.NewHandle(options.Signal)
		C.kvgo_set_signal(o, C.uintptr_t(plan.signal))
	}
	out := (**C.kvstrata_plan)(a.alloc(8))
	if err := a.check(C.kvstrata_plan_create(m.raw, o, out, a.err)); err != nil {
		plan.Close()
		return nil, err
	}
	plan.raw = *out
	return plan, nil
}

// Segments says what will be read, one entry per stream that is not empty, in order of arrival.
func (p *Plan) Segments() ([]Segment, error) {
	segments := make([]Segment, C.kvstrata_plan_segment_count(p.raw))
	for i := range segments {
		out := &segments[i]
		err := fetch(unsafe.Pointer(out), unsafe.Sizeof(*out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
			return C.kvstrata_plan_get_segment(p.raw, C.uint64_t(i), (*C.kvstrata_plan_segment)(to), e)
		})
		if err != nil {
			return nil, err
		}
	}
	return segments, nil
}

// Start checks every destination, then begins. Their memory is the plan's until it has quiesced, and is kept until Close.
func (p *Plan) Start(destinations []Buffer) error {
	a := newArena()
	defer a.free()
	array := (*C.kvstrata_buffer)(a.alloc(uintptr(len(destinations)) * C.sizeof_kvstrata_buffer))
	for i := range destinations {
		if err := destinations[i].fill(a, &unsafe.Slice(array, len(destinations))[i]); err != nil {
			return err
		}
	}
	err := a.check(C.kvstrata_plan_start(p.raw, array, C.uint64_t(len(destinations)), C.sizeof_kvstrata_buffer, a.err))
	if err == nil {
		for i := range destinations {
			p.memory = append(p.memory, destinations[i].Memory.shared.retain())
		}
	}
	return err
}

// Poll never blocks.
func (p *Plan) Poll() (PlanResult, error) {
	var out PlanResult
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_plan_poll(p.raw, (*C.kvstrata_plan_result)(to), e)
	})
	return out, err
}

// WaitLayers waits until the leading layers are ready or the plan has ended; a timeout leaves it running.
func (p *Plan) WaitLayers(layers, timeoutMs uint64) (PlanResult, error) {
	var out PlanResult
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_plan_wait_layers(p.raw, C.uint64_t(layers), C.uint64_t(timeoutMs),
			(*C.kvstrata_plan_result)(to), e)
	})
	return out, err
}

// Wait waits for the end and quiescence.
func (p *Plan) Wait(timeoutMs uint64) (PlanResult, error) {
	var out PlanResult
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_plan_wait(p.raw, C.uint64_t(timeoutMs), (*C.kvstrata_plan_result)(to), e)
	})
	return out, err
}

// Cancel ends the plan; when it has returned the destinations are never touched again.
func (p *Plan) Cancel() { C.kvstrata_plan_cancel(p.raw) }

// Close cancels a running plan and lets go of its destinations.
func (p *Plan) Close() {
	C.kvstrata_plan_destroy(p.raw)
	p.raw = nil
	if p.signal != 0 {
		p.signal.Delete()
		p.signal = 0
	}
	for _, memory := range p.memory {
		memory.release()
	}
	p.memory = nil
}
