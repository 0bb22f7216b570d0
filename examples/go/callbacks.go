// SPDX-License-Identifier: Apache-2.0

package kvstrata

// #include "bridge.h"
import "C"

import (
	"runtime/cgo"
	"unsafe"
)

// fenced runs a storage's method: nothing but a status leaves it.
func fenced(handle C.uintptr_t, run func(storage Storage) error) (status C.kvstrata_status) {
	defer func() {
		if recover() != nil {
			status = C.KVSTRATA_E_CALLBACK
		}
	}()
	status, _ = statusOf(run(cgo.Handle(handle).Value().(Storage)))
	return status
}

//export kvgoDestroy
func kvgoDestroy(handle C.uintptr_t) {
	defer cgo.Handle(handle).Delete()
	fenced(handle, func(storage Storage) error {
		storage.Destroyed()
		return nil
	})
}

//export kvgoSubmit
func kvgoSubmit(handle C.uintptr_t, requests *C.kvstrata_storage_request, count, stride C.uint64_t) C.kvstrata_status {
	taken := make([]*Request, count)
	for i := range taken {
		taken[i] = newRequest((*C.kvstrata_storage_request)(unsafe.Add(unsafe.Pointer(requests), uintptr(i)*uintptr(stride))))
	}
	status := fenced(handle, func(storage Storage) error { return storage.Submit(taken) })
	if status == C.KVSTRATA_OK {
		return status
	}
	// Refused, unless one has been completed: then all were accepted, and those that are left fail.
	accepted := false
	for _, request := range taken {
		accepted = accepted || request.done()
	}
	for _, request := range taken {
		if accepted {
			request.Complete(&Error{Code: KVSTRATA_E_CALLBACK})
		} else {
			request.refuse()
		}
	}
	if accepted {
		return C.KVSTRATA_OK
	}
	return status
}

//export kvgoStat
func kvgoStat(handle C.uintptr_t, key *C.kvstrata_key, exists *C.int32_t, bytes *C.uint64_t) C.kvstrata_status {
	return fenced(handle, func(storage Storage) error {
		size, found, err := storage.Stat(*(*Key)(unsafe.Pointer(key)))
		*exists, *bytes = 0, C.uint64_t(size)
		if found {
			*exists = 1
		}
		return err
	})
}

//export kvgoRemove
func kvgoRemove(handle C.uintptr_t, key *C.kvstrata_key) C.kvstrata_status {
	return fenced(handle, func(storage Storage) error { return storage.Remove(*(*Key)(unsafe.Pointer(key))) })
}

//export kvgoSync
func kvgoSync(handle C.uintptr_t) C.kvstrata_status {
	return fenced(handle, Storage.Sync)
}

//export kvgoList
func kvgoList(handle C.uintptr_t, cursor *C.uint64_t, entries *C.kvstrata_storage_entry, capacity, stride C.uint64_t,
	count *C.uint64_t) C.kvstrata_status {
	return fenced(handle, func(storage Storage) error {
		found, next, err := storage.List(uint64(*cursor), int(capacity))
		if err != nil {
			return err
		}
		if uint64(len(found)) > uint64(capacity) {
			return &Error{Code: KVSTRATA_E_CALLBACK}
		}
		for i, entry := range found {
			to := (*C.kvstrata_storage_entry)(unsafe.Add(unsafe.Pointer(entries), uintptr(i)*uintptr(stride)))
			if len(entry.Meta) > len(to.meta) {
				return &Error{Code: KVSTRATA_E_CALLBACK}
			}
			*(*Key)(unsafe.Pointer(&to.key)) = entry.Key
			to.payload_bytes, to.stored_bytes = C.uint64_t(entry.PayloadBytes), C.uint64_t(entry.StoredBytes)
			to.meta_size = C.uint32_t(len(entry.Meta))
			copy(unsafe.Slice((*byte)(unsafe.Pointer(&to.meta[0])), len(to.meta)), entry.Meta)
		}
		*cursor, *count = C.uint64_t(next), C.uint64_t(len(found))
		return nil
	})
}

//export kvgoProgress
func kvgoProgress(handle C.uintptr_t, done, total C.uint64_t) C.int32_t {
	return stops(func() bool {
		return cgo.Handle(handle).Value().(func(done, total uint64) bool)(uint64(done), uint64(total))
	})
}

//export kvgoSignal
func kvgoSignal(handle C.uintptr_t, layersReady C.uint64_t, state C.int32_t) C.int32_t {
	return stops(func() bool {
		return cgo.Handle(handle).Value().(func(uint64, int32) bool)(uint64(layersReady), int32(state))
	})
}

// stops is 1 when the function says false or panics.
func stops(run func() bool) (answer C.int32_t) {
	answer = 1
	defer func() { _ = recover() }()
	if run() {
		answer = 0
	}
	return answer
}
