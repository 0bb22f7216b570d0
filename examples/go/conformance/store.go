// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"sync"

	"kvstrata"
)

type record struct {
	key           kvstrata.Key
	payload, meta []byte
}

// store is the caller's storage: records in memory, that live as long as the case. Requests can be held, calls can fail.
type store struct {
	capabilities       uint64
	mutex              sync.Mutex
	records            []record // in order of putting
	held               []*kvstrata.Request
	holdPuts, holdGets bool
	failing            map[string]int32
	destroyed          int
}

// find needs the lock; -1 when there is no such record.
func (s *store) find(key kvstrata.Key) int {
	for i := range s.records {
		if s.records[i].key == key {
			return i
		}
	}
	return -1
}

// fault needs the lock.
func (s *store) fault(call string) error {
	if code := s.failing[call]; code != 0 {
		return &kvstrata.Error{Code: code}
	}
	return nil
}

func (s *store) drop(key kvstrata.Key) {
	if i := s.find(key); i >= 0 {
		s.records = append(s.records[:i], s.records[i+1:]...)
	}
}

func (s *store) work(request *kvstrata.Request) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if request.Put {
		if err := s.fault("put"); err != nil {
			return err
		}
		s.drop(request.Key)
		s.records = append(s.records, record{request.Key, bytes.Join(request.Parts, nil), append([]byte(nil), request.Meta...)})
		return nil
	}
	if err := s.fault("get"); err != nil {
		return err
	}
	i := s.find(request.Key)
	if i < 0 {
		return &kvstrata.Error{Code: kvstrata.KVSTRATA_E_NOT_FOUND}
	}
	payload := s.records[i].payload
	if request.Offset+uint64(len(request.Destination)) > uint64(len(payload)) {
		return &kvstrata.Error{Code: kvstrata.KVSTRATA_E_CORRUPT}
	}
	copy(request.Destination, payload[request.Offset:])
	return nil
}

func (s *store) Capabilities() uint64 { return s.capabilities }

func (s *store) Submit(requests []*kvstrata.Request) error {
	for _, request := range requests {
		s.mutex.Lock()
		wait := request.Put && s.holdPuts || !request.Put && s.holdGets
		if wait {
			s.held = append(s.held, request)
		}
		s.mutex.Unlock()
		if !wait {
			request.Complete(s.work(request))
		}
	}
	return nil
}

func (s *store) letGo() {
	s.mutex.Lock()
	held := s.held
	s.held, s.holdPuts, s.holdGets = nil, false, false
	s.mutex.Unlock()
	for _, request := range held {
		request.Complete(s.work(request))
	}
}

func (s *store) Stat(key kvstrata.Key) (uint64, bool, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	i := s.find(key)
	if i < 0 {
		return 0, false, s.fault("stat")
	}
	return uint64(len(s.records[i].payload)), true, s.fault("stat")
}

func (s *store) Remove(key kvstrata.Key) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.fault("remove"); err != nil {
		return err
	}
	s.drop(key)
	return nil
}

func (s *store) Sync() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.fault("sync")
}

func (s *store) List(cursor uint64, capacity int) ([]kvstrata.Entry, uint64, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var out []kvstrata.Entry
	for ; cursor < uint64(len(s.records)) && len(out) < capacity; cursor++ {
		one := s.records[cursor]
		size := uint64(len(one.payload))
		out = append(out, kvstrata.Entry{Key: one.key, PayloadBytes: size, StoredBytes: size + uint64(len(one.meta)), Meta: one.meta})
	}
	if cursor == uint64(len(s.records)) {
		cursor = 0
	}
	return out, cursor, s.fault("list")
}

func (s *store) Destroyed() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.destroyed++
}
