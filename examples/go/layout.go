// SPDX-License-Identifier: Apache-2.0

package kvstrata

// #include "bridge.h"
import "C"

import "unsafe"

// Layout describes what a model stores. It never changes; any goroutine may use it at any time.
type Layout struct {
	raw *C.kvstrata_layout
}

// Stream is one stream of rows or of state; the members of kvstrata_stream.
type Stream struct {
	Kind, Role                        int32
	Layer, Ratio, RowBytes, StateRows uint32
	Packing                           int32
	Flags                             uint32
}

// LayoutDesc is what NewLayout makes a layout of.
type LayoutDesc struct {
	Family                     string // "" = custom
	BlockTokens                uint32
	Profile, ReplayMode        int32
	ReplayWindow, ReplayLayers uint32
	Streams                    []Stream
}

// PresetOptions says how presets pack rows and keys; zero is the model's own way.
type PresetOptions struct {
	BlockTokens     uint32
	Rows, IndexKeys int32
	IncludeDraft    bool
}

func (o PresetOptions) fill(a *arena) *C.kvstrata_preset_options {
	out := (*C.kvstrata_preset_options)(a.alloc(C.sizeof_kvstrata_preset_options))
	out.struct_size = C.sizeof_kvstrata_preset_options
	out.block_tokens = C.uint32_t(o.BlockTokens)
	out.rows = C.int32_t(o.Rows)
	out.index_keys = C.int32_t(o.IndexKeys)
	if o.IncludeDraft {
		out.include_draft = 1
	}
	return out
}

func makeLayout(call func(a *arena, out **C.kvstrata_layout) C.kvstrata_status) (*Layout, error) {
	a := newArena()
	defer a.free()
	out := (**C.kvstrata_layout)(a.alloc(8))
	if err := a.check(call(a, out)); err != nil {
		return nil, err
	}
	return &Layout{*out}, nil
}

// NewLayout makes a layout of streams.
func NewLayout(desc LayoutDesc) (*Layout, error) {
	return makeLayout(func(a *arena, out **C.kvstrata_layout) C.kvstrata_status {
		c := (*C.kvstrata_layout_desc)(a.alloc(C.sizeof_kvstrata_layout_desc))
		c.struct_size = C.sizeof_kvstrata_layout_desc
		c.block_tokens = C.uint32_t(desc.BlockTokens)
		c.profile = C.int32_t(desc.Profile)
		c.replay_mode = C.int32_t(desc.ReplayMode)
		c.replay_window = C.uint32_t(desc.ReplayWindow)
		c.replay_layers = C.uint32_t(desc.ReplayLayers)
		if desc.Family != "" {
			c.family = a.text(desc.Family)
		}
		c.streams = (*C.kvstrata_stream)(a.alloc(uintptr(len(desc.Streams)) * C.sizeof_kvstrata_stream))
		c.stream_count = C.uint64_t(len(desc.Streams))
		streams := unsafe.Slice(c.streams, len(desc.Streams))
		for i, s := range desc.Streams {
			streams[i].struct_size = C.sizeof_kvstrata_stream
			streams[i].kind, streams[i].role = C.int32_t(s.Kind), C.int32_t(s.Role)
			streams[i].layer, streams[i].ratio = C.uint32_t(s.Layer), C.uint32_t(s.Ratio)
			streams[i].row_bytes, streams[i].state_rows = C.uint32_t(s.RowBytes), C.uint32_t(s.StateRows)
			streams[i].packing, streams[i].flags = C.int32_t(s.Packing), C.uint32_t(s.Flags)
		}
		return C.kvstrata_layout_create(c, out, a.err)
	})
}

// LayoutFromPreset knows "deepseek-v4-flash" and the other names of the C header.
func LayoutFromPreset(name string, options PresetOptions) (*Layout, error) {
	return makeLayout(func(a *arena, out **C.kvstrata_layout) C.kvstrata_status {
		return C.kvstrata_layout_from_preset(a.text(name), options.fill(a), out, a.err)
	})
}

// LayoutFromConfig reads the text of a model's Hugging Face config.json.
func LayoutFromConfig(json string, options PresetOptions) (*Layout, error) {
	return makeLayout(func(a *arena, out **C.kvstrata_layout) C.kvstrata_status {
		return C.kvstrata_layout_from_config(a.text(json), C.uint64_t(len(json)), options.fill(a), out, a.err)
	})
}

// LayoutFromText reads the canonical text that Text gives.
func LayoutFromText(text string) (*Layout, error) {
	return makeLayout(func(a *arena, out **C.kvstrata_layout) C.kvstrata_status {
		return C.kvstrata_layout_from_text(a.text(text), C.uint64_t(len(text)), out, a.err)
	})
}

// LayoutGQA is grouped-query or multi-head attention.
func LayoutGQA(layers, kvHeads, headDim, elementBytes, blockTokens uint32) (*Layout, error) {
	return makeLayout(func(a *arena, out **C.kvstrata_layout) C.kvstrata_status {
		return C.kvstrata_layout_gqa(C.uint32_t(layers), C.uint32_t(kvHeads), C.uint32_t(headDim),
			C.uint32_t(elementBytes), C.uint32_t(blockTokens), out, a.err)
	})
}

// LayoutMLA is multi-head latent attention: one row of rowBytes per token and layer.
func LayoutMLA(layers, rowBytes, blockTokens uint32) (*Layout, error) {
	return makeLayout(func(a *arena, out **C.kvstrata_layout) C.kvstrata_status {
		return C.kvstrata_layout_mla(C.uint32_t(layers), C.uint32_t(rowBytes), C.uint32_t(blockTokens), out, a.err)
	})
}

// LayoutOpaque is an engine that only hands out its whole state as bytes.
func LayoutOpaque(blockTokens uint32) (*Layout, error) {
	return makeLayout(func(a *arena, out **C.kvstrata_layout) C.kvstrata_status {
		return C.kvstrata_layout_opaque(C.uint32_t(blockTokens), out, a.err)
	})
}

// Close releases the layout; namespaces made from it live on.
func (l *Layout) Close() {
	C.kvstrata_layout_destroy(l.raw)
	l.raw = nil
}

// Info describes the layout.
func (l *Layout) Info() (LayoutInfo, error) {
	var out LayoutInfo
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_layout_get_info(l.raw, (*C.kvstrata_layout_info)(to), e)
	})
	return out, err
}

// Stream describes one stream.
func (l *Layout) Stream(index uint32) (StreamInfo, error) {
	var out StreamInfo
	err := fetch(unsafe.Pointer(&out), unsafe.Sizeof(out), func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_layout_get_stream(l.raw, C.uint32_t(index), (*C.kvstrata_stream)(to), e)
	})
	return out, err
}

// SnapshotBytes is the size of all state streams at a position.
func (l *Layout) SnapshotBytes(position uint64) (uint64, error) {
	return number(func(out *C.uint64_t, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_layout_snapshot_bytes(l.raw, C.uint64_t(position), out, e)
	})
}

// RowsAt is the number of rows of a stream at a position.
func (l *Layout) RowsAt(index uint32, position uint64) (uint64, error) {
	return number(func(out *C.uint64_t, e *C.kvstrata_error) C.kvstrata_status {
		return C.kvstrata_layout_rows_at(l.raw, C.uint32_t(index), C.uint64_t(position), out, e)
	})
}

// Text is the canonical text; equal texts are equal layouts.
func (l *Layout) Text() (string, error) {
	a := newArena()
	defer a.free()
	size := (*C.uint64_t)(a.alloc(8))
	// No buffer with no capacity only asks for the size; a failure comes again below.
	C.kvstrata_layout_text(l.raw, nil, 0, size, nil)
	buffer := (*C.char)(a.alloc(uintptr(*size)))
	if err := a.check(C.kvstrata_layout_text(l.raw, buffer, *size, size, a.err)); err != nil {
		return "", err
	}
	return C.GoString(buffer), nil
}

// fetch calls a function that fills one struct, whose Go twin (types.go, laid out alike) is `into`.
func fetch(into unsafe.Pointer, size uintptr, call func(to unsafe.Pointer, e *C.kvstrata_error) C.kvstrata_status) error {
	*(*uint32)(into) = uint32(size)
	failure := newFailure()
	return failureOf(call(into, failure), failure)
}
