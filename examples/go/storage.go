// SPDX-License-Identifier: Apache-2.0

package kvstrata

// #include "bridge.h"
import "C"

import (
	"errors"
	"sync/atomic"
	"unsafe"
)

// Key names a record.
type Key [32]byte

// Entry is what List gives of a record; StoredBytes is what it costs of the budget.
type Entry struct {
	Key                       Key
	PayloadBytes, StoredBytes uint64
	Meta                      []byte // at most 4096 bytes
}

// Storage is an engine's own store; the rules of each call are in c_api.h, section 4. Called from any thread of the
// library, several at once. To report a failure return *Error; any other error, and a panic, is KVSTRATA_E_CALLBACK.
type Storage interface {
	// KVSTRATA_STORAGE_DURABLE_SYNC | KVSTRATA_STORAGE_PERSISTENT
	Capabilities() uint64
	// Accepts all requests, and completes each exactly once, now or later; or none, and gives an error.
	Submit(requests []*Request) error
	// Payload bytes, and whether there is such a record.
	Stat(key Key) (uint64, bool, error)
	Remove(key Key) error
	Sync() error
	// At most capacity entries from cursor (0 at first) on, and the next cursor; 0 = the end.
	List(cursor uint64, capacity int) ([]Entry, uint64, error)
	// The cache has made its last call.
	Destroyed()
}

// Request is one put or ranged get. Its slices are C memory of the library: they end with Complete.
type Request struct {
	Put         bool
	Key         Key
	Offset      uint64   // get: first payload byte
	Destination []byte   // get: to be filled; a shorter record completes with KVSTRATA_E_CORRUPT
	Parts       [][]byte // put: the payload, one after the other
	Meta        []byte   // put
	c           C.kvstrata_storage_request
	completed   int32
}

func newRequest(from *C.kvstrata_storage_request) *Request {
	r := &Request{c: *from}
	r.Put = from.kind == C.KVSTRATA_STORAGE_PUT
	r.Key = *(*Key)(unsafe.Pointer(&from.key))
	r.Offset = uint64(from.offset)
	if !r.Put {
		r.Destination = sliceOf(from.destination, from.size)
		return r
	}
	for _, part := range unsafe.Slice(from.parts, from.part_count) {
		r.Parts = append(r.Parts, sliceOf(part.data, part.size))
	}
	r.Meta = sliceOf(from.meta, from.meta_size)
	return r
}

func sliceOf(from unsafe.Pointer, size C.uint64_t) []byte {
	if size == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(from), size)
}

// Complete ends the request, with err as in Storage. Only the first call counts.
func (r *Request) Complete(err error) {
	if !atomic.CompareAndSwapInt32(&r.completed, 0, 1) {
		return
	}
	bytes := len(r.Destination)
	for _, part := range r.Parts {
		bytes += len(part)
	}
	status, native := statusOf(err)
	if err != nil {
		bytes = 0
	}
	r.Destination, r.Parts, r.Meta = nil, nil, nil
	C.kvgo_complete(&r.c, status, C.uint64_t(bytes), native)
}

func statusOf(err error) (C.kvstrata_status, C.int64_t) {
	if err == nil {
		return C.KVSTRATA_OK, 0
	}
	var known *Error
	if errors.As(err, &known) && known.Code != KVSTRATA_OK {
		return C.kvstrata_status(known.Code), C.int64_t(known.NativeCode)
	}
	return C.KVSTRATA_E_CALLBACK, 0
}

func (r *Request) done() bool { return atomic.LoadInt32(&r.completed) != 0 }

// refuse makes a later Complete do nothing: the request has never been accepted.
func (r *Request) refuse() {
	atomic.StoreInt32(&r.completed, 1)
	r.Destination, r.Parts, r.Meta = nil, nil, nil
}
