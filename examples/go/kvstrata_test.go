// SPDX-License-Identifier: Apache-2.0

package kvstrata

import (
	"bytes"
	"errors"
	"reflect"
	"sync"
	"testing"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

var identity = map[string][]byte{"model.weights": []byte("w"), "adapter": nil, "engine.state_version": []byte("1"), "tenant": nil}

func ids(count int) []int32 {
	out := make([]int32, count)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

func storeState(space *Namespace, state string) CommitInfo {
	writer := must(space.Writer(WriterOptions{}))
	defer writer.Close()
	memory := NewMemory(len(state))
	defer memory.Free()
	copy(memory.Bytes(), state)
	for _, err := range []error{writer.SetSource(Buffer{Memory: memory}), writer.Advance(ids(40), nil, 40), writer.Snapshot()} {
		if err != nil {
			panic(err)
		}
	}
	return must(writer.Commit(0, 0))
}

func TestStructsAreLaidOutAsInC(t *testing.T) {
	for _, value := range []any{LayoutInfo{}, CloseInfo{}, Stats{}, VerifyInfo{}, NamespaceInfo{}, MatchInfo{}, PlanResult{},
		CommitInfo{}, PinInfo{}, StreamInfo{}, Segment{}, Event{}} {
		kind := reflect.TypeOf(value)
		expected := goLayouts[kind.Name()]
		given := []uintptr{kind.Size()}
		for i := 0; i < kind.NumField(); i++ {
			given = append(given, kind.Field(i).Offset)
		}
		if !reflect.DeepEqual(given, expected) {
			t.Errorf("%s: laid out as %v, in C as %v", kind.Name(), given, expected)
		}
	}
}

// faulty is a storage whose every call does what the test says.
type faulty struct {
	mutex     sync.Mutex
	fault     string
	records   map[Key][2][]byte
	destroyed int
}

func (f *faulty) now() string {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.fault
}

func (f *faulty) set(fault string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.fault = fault
}

func (f *faulty) Capabilities() uint64 { return 0 }
func (f *faulty) Submit(requests []*Request) error {
	switch f.now() {
	case "refuse":
		return errors.New("refused")
	case "panic":
		panic("part of the test")
	case "panic after one":
		requests[0].Complete(&Error{Code: KVSTRATA_E_IO})
		panic("part of the test")
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, request := range requests {
		if request.Put {
			f.records[request.Key] = [2][]byte{bytes.Join(request.Parts, nil), append([]byte(nil), request.Meta...)}
		} else {
			copy(request.Destination, f.records[request.Key][0][request.Offset:])
		}
		request.Complete(nil)
		request.Complete(nil) // counts once
	}
	return nil
}
func (f *faulty) Stat(Key) (uint64, bool, error) { return 0, false, nil }
func (f *faulty) Remove(Key) error               { return nil }
func (f *faulty) Sync() error                    { return nil }
func (f *faulty) List(uint64, int) ([]Entry, uint64, error) {
	if f.now() == "panic" {
		panic("part of the test")
	}
	return nil, 0, nil
}
func (f *faulty) Destroyed() { f.destroyed++ }

func TestAStorageThatRefusesOrPanicsFailsItsRequestsAndNothingElse(t *testing.T) {
	storage := &faulty{records: map[Key][2][]byte{}, fault: "panic"}
	options := CacheOptions{Storage: storage, CapacityBytes: 1 << 20}
	if _, err := OpenCache(options); !errors.Is(err, &Error{Code: KVSTRATA_E_CALLBACK}) {
		t.Fatalf("opened on a storage that panics: %v", err)
	}
	storage.set("")
	cache := must(OpenCache(options))
	layout := must(LayoutOpaque(16))
	space := must(cache.Namespace(layout, identity, NamespaceOptions{}))
	for _, fault := range []string{"refuse", "panic", "panic after one"} {
		storage.set(fault)
		if info := storeState(space, "state"); info.SnapshotsStored != 0 || info.SnapshotsDropped != 1 {
			t.Errorf("%s: %+v", fault, info)
		}
	}
	storage.set("")
	if info := storeState(space, "state"); info.SnapshotsStored != 1 {
		t.Errorf("afterwards: %+v", info)
	}
	space.Close()
	layout.Close()
	cache.Close()
	if storage.destroyed != 1 {
		t.Errorf("destroyed %d times", storage.destroyed)
	}
}

func TestAPlanIsWaitedForByManyAndKeepsItsMemory(t *testing.T) {
	cache := must(OpenCache(CacheOptions{CapacityBytes: 1 << 20}))
	defer cache.Close()
	layout := must(LayoutOpaque(16))
	defer layout.Close()
	space := must(cache.Namespace(layout, identity, NamespaceOptions{}))
	defer space.Close()
	storeState(space, "the state")
	match := must(space.Lookup(ids(41), LookupOptions{}))
	defer match.Close()
	var mutex sync.Mutex
	last := int32(0)
	plan := must(match.Plan(PlanOptions{Signal: func(_ uint64, state int32) bool {
		mutex.Lock()
		defer mutex.Unlock()
		last = state
		return true
	}}))
	memory := NewMemory(9)
	kept := memory.Bytes()
	if err := plan.Start([]Buffer{{Memory: memory}}); err != nil {
		t.Fatal(err)
	}
	memory.Free() // the plan keeps it
	var group sync.WaitGroup
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			if result, err := plan.Wait(NoTimeout); err != nil || result.UsableTokens != 40 {
				t.Errorf("%+v, %v", result, err)
			}
		}()
	}
	group.Wait()
	if string(kept) != "the state" {
		t.Errorf("restored %q", kept)
	}
	plan.Close()
	plan.Close()
	if last != KVSTRATA_PLAN_COMPLETE {
		t.Errorf("signalled %d at last", last)
	}
}

func TestProgressThatPanicsEndsAVerify(t *testing.T) {
	cache := must(OpenCache(CacheOptions{CapacityBytes: 1 << 20}))
	defer cache.Close()
	layout := must(LayoutOpaque(16))
	defer layout.Close()
	space := must(cache.Namespace(layout, identity, NamespaceOptions{}))
	defer space.Close()
	storeState(space, "state")
	_, err := cache.Verify(func(uint64, uint64) bool { panic("part of the test") })
	if !errors.Is(err, &Error{Code: KVSTRATA_E_CANCELLED}) {
		t.Error(err)
	}
}

func TestManyGoroutinesStoreAndLookUp(t *testing.T) {
	cache := must(OpenCache(CacheOptions{CapacityBytes: 1 << 20}))
	defer cache.Close()
	layout := must(LayoutOpaque(16))
	defer layout.Close()
	space := must(cache.Namespace(layout, identity, NamespaceOptions{}))
	defer space.Close()
	var group sync.WaitGroup
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for round := 0; round < 20; round++ {
				storeState(space, "state")
				match := must(space.Lookup(ids(41), LookupOptions{}))
				if info := must(match.Info()); info.UsableTokens != 40 {
					t.Errorf("%+v", info)
				}
				match.Close()
			}
		}()
	}
	group.Wait()
	if stats := must(cache.Stats()); stats.Lookups != 80 || stats.Hits != 80 {
		t.Errorf("%d lookups, %d hits", stats.Lookups, stats.Hits)
	}
}

func TestPinnedRowsAreReadByManyWhenMatchAndCacheHaveGone(t *testing.T) {
	cache := must(OpenCache(CacheOptions{CapacityBytes: 1 << 20}))
	layout := must(LayoutMLA(1, 6, 16))
	names := map[string][]byte{"model.quantization": nil, "rope": nil, "packing": nil, "kernel.numerics": nil}
	for name, value := range identity {
		names[name] = value
	}
	space := must(cache.Namespace(layout, names, NamespaceOptions{}))
	writer := must(space.Writer(WriterOptions{}))
	memory := NewMemory(32 * 6)
	rows := make([]byte, 32*6)
	for i := range rows {
		rows[i] = byte(i)
	}
	copy(memory.Bytes(), rows)
	for _, err := range []error{writer.SetSource(Buffer{Memory: memory}), writer.Advance(ids(32), nil, 32)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(writer.Commit(0, 0))
	writer.Close()
	memory.Free()
	match := must(space.Lookup(ids(33), LookupOptions{}))
	pin := must(match.Pin())
	match.Close()
	space.Close()
	layout.Close()
	cache.Close()
	if info := must(pin.Info()); info.FirstToken != 0 || info.EndToken != 32 || info.RangeCount != 1 {
		t.Errorf("%+v", info)
	}
	var group sync.WaitGroup
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			found, err := pin.Range(0)
			if err != nil || found.Stream != 0 || found.FirstRow != 0 || found.Rows != 32 || !bytes.Equal(found.Bytes, rows) {
				t.Errorf("%+v, %v", found, err)
			}
		}()
	}
	group.Wait()
	if _, err := pin.Range(1); !errors.Is(err, &Error{Code: KVSTRATA_E_INVALID_ARGUMENT}) {
		t.Error(err)
	}
	pin.Close()
	pin.Close()
	if _, err := pin.Info(); !errors.Is(err, &Error{Code: KVSTRATA_E_INVALID_ARGUMENT}) {
		t.Error(err)
	}
}
