// SPDX-License-Identifier: Apache-2.0

package kvstrata

// #include "bridge.h"
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// sharedMemory is freed by its last user.
type sharedMemory struct {
	base  unsafe.Pointer
	size  int
	users int32
}

func (s *sharedMemory) retain() *sharedMemory {
	atomic.AddInt32(&s.users, 1)
	return s
}

func (s *sharedMemory) release() {
	if atomic.AddInt32(&s.users, -1) == 0 {
		C.free(s.base)
	}
}

// Column is `Bytes` bytes of every row, at Offset from the base (of the page), Stride bytes from row to row.
type Column struct {
	Bytes          uint32
	Offset, Stride uint64
}

// Buffer says where one stream's rows are, as source and as destination; the members of kvstrata_buffer.
type Buffer struct {
	Stream       uint32
	Memory       *Memory
	Offset, Size int   // the part of the memory that the rows may be in; Size 0 = the rest
	Form         int32 // KVSTRATA_FORM_*
	FirstRow     uint64
	RowStride    uint64
	CapacityRows uint64
	RowsPerPage  uint32
	PageStride   uint64
	FirstPage    uint64
	PageIDs      []int64
	Columns      []Column
}

// fill writes the descriptor; its arrays live in the arena, its rows in C memory.
func (b *Buffer) fill(a *arena, out *C.kvstrata_buffer) error {
	if b.Memory == nil || b.Memory.shared == nil {
		return &Error{Code: KVSTRATA_E_INVALID_ARGUMENT, Field: "memory", Message: "none, or freed"}
	}
	shared := b.Memory.shared
	size := b.Size
	if size == 0 {
		size = shared.size - b.Offset
	}
	if b.Offset < 0 || size < 0 || b.Offset > shared.size || size > shared.size-b.Offset {
		return &Error{Code: KVSTRATA_E_INVALID_ARGUMENT, Field: "memory", Message: "offset and size are not within it"}
	}
	out.struct_size = C.sizeof_kvstrata_buffer
	out.stream = C.uint32_t(b.Stream)
	out.form = C.int32_t(b.Form)
	out.base = unsafe.Add(shared.base, b.Offset)
	out.size_bytes = C.uint64_t(size)
	out.first_row = C.uint64_t(b.FirstRow)
	out.row_stride = C.uint64_t(b.RowStride)
	out.capacity_rows = C.uint64_t(b.CapacityRows)
	out.rows_per_page = C.uint32_t(b.RowsPerPage)
	out.page_stride = C.uint64_t(b.PageStride)
	out.first_page = C.uint64_t(b.FirstPage)
	if len(b.PageIDs) != 0 {
		ids := a.alloc(uintptr(len(b.PageIDs)) * 8)
		copy(unsafe.Slice((*int64)(ids), len(b.PageIDs)), b.PageIDs)
		out.page_ids, out.page_count, out.page_id_bytes = ids, C.uint64_t(len(b.PageIDs)), 8
	}
	if len(b.Columns) != 0 {
		columns := a.alloc(uintptr(len(b.Columns)) * C.sizeof_kvstrata_column)
		array := unsafe.Slice((*C.kvstrata_column)(columns), len(b.Columns))
		for i := range array {
			c := &array[i]
			c.struct_size = C.sizeof_kvstrata_column
			c.bytes = C.uint32_t(b.Columns[i].Bytes)
			c.offset = C.uint64_t(b.Columns[i].Offset)
			c.stride = C.uint64_t(b.Columns[i].Stride)
		}
		out.columns, out.column_count = (*C.kvstrata_column)(columns), C.uint64_t(len(b.Columns))
	}
	return nil
}
