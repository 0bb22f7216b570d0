// SPDX-License-Identifier: Apache-2.0

// Package kvstrata keeps an LLM's computed prompt prefixes and gives them back exactly.
//
// Names and promises (threads, units, failure) are those of include/kvstrata/c_api.h. Every handle has a Close, which
// may be called twice; nothing is closed by the garbage collector. Failures are *Error.
//
// Memory that the library reads or writes later is C memory (Memory): no Go pointer outlives the call that it is given to.
package kvstrata

// #cgo pkg-config: kvstrata
// #include "bridge.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Error is a status that is not KVSTRATA_OK.
type Error struct {
	Code       int32 // KVSTRATA_E_*
	NativeCode int64 // an errno or the status of a callback; 0 = none
	Field      string
	Message    string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s [%s] %s", StatusName(e.Code), e.Field, e.Message)
}

// Is makes errors.Is compare codes: errors.Is(err, &kvstrata.Error{Code: kvstrata.KVSTRATA_E_IO}).
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Code == e.Code
}

// StatusName gives "KVSTRATA_E_IO".
func StatusName(code int32) string {
	return C.GoString(C.kvstrata_status_name(C.kvstrata_status(code)))
}

// ABIVersion is the SONAME number of the library that is loaded.
func ABIVersion() uint32 { return uint32(C.kvstrata_abi_version()) }

// FormatVersion is the newest on-disk format that the library can write.
func FormatVersion() uint32 { return uint32(C.kvstrata_format_version()) }

// arena is C memory for the arguments of one call: structs that point to structs may not point to Go memory.
type arena struct {
	blocks []unsafe.Pointer
	err    *C.kvstrata_error
}

func newArena() *arena {
	a := &arena{}
	a.err = (*C.kvstrata_error)(a.alloc(C.sizeof_kvstrata_error))
	a.err.struct_size = C.sizeof_kvstrata_error
	return a
}

// alloc gives zeroed memory, of at least one byte.
func (a *arena) alloc(size uintptr) unsafe.Pointer {
	block := C.calloc(1, C.size_t(size+1))
	if block == nil {
		panic("kvstrata: out of memory")
	}
	a.blocks = append(a.blocks, block)
	return block
}

func (a *arena) text(from string) *C.char {
	block := C.CString(from)
	a.blocks = append(a.blocks, unsafe.Pointer(block))
	return block
}

func (a *arena) bytes(from []byte) unsafe.Pointer {
	block := a.alloc(uintptr(len(from)))
	copy(unsafe.Slice((*byte)(block), len(from)), from)
	return block
}

func (a *arena) free() {
	for _, block := range a.blocks {
		C.free(block)
	}
}

// check turns a status into an error, nil for KVSTRATA_OK.
func (a *arena) check(status C.kvstrata_status) error { return failureOf(status, a.err) }

// newFailure is for calls without an arena: what they fill has no pointers of Go's, and may be Go memory.
func newFailure() *C.kvstrata_error {
	return &C.kvstrata_error{struct_size: C.sizeof_kvstrata_error}
}

func failureOf(status C.kvstrata_status, from *C.kvstrata_error) error {
	if status == C.KVSTRATA_OK {
		return nil
	}
	return &Error{int32(status), int64(from.native_code), C.GoString(&from.field[0]), C.GoString(&from.message[0])}
}

// number calls a function whose output is a uint64.
func number(call func(out *C.uint64_t, err *C.kvstrata_error) C.kvstrata_status) (uint64, error) {
	a := newArena()
	defer a.free()
	out := (*C.uint64_t)(a.alloc(8))
	err := a.check(call(out, a.err))
	return uint64(*out), err
}

// Memory is C memory that rows live in. It may be in use by writers and plans when it is freed: it goes with the last.
type Memory struct {
	shared *sharedMemory
}

// NewMemory gives `size` zero bytes.
func NewMemory(size int) *Memory {
	base := C.calloc(1, C.size_t(size)+1)
	if base == nil {
		panic("kvstrata: out of memory")
	}
	return &Memory{&sharedMemory{base: base, size: size, users: 1}}
}

// Bytes is the memory itself, valid until Free. While a started plan is not over its destinations are the library's.
func (m *Memory) Bytes() []byte {
	if m.shared == nil {
		return nil
	}
	return unsafe.Slice((*byte)(m.shared.base), m.shared.size)
}

// Free gives the memory up; what still uses it keeps it alive.
func (m *Memory) Free() {
	if m.shared != nil {
		m.shared.release()
		m.shared = nil
	}
}
