// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

type pair struct{ key, value string }

// step is one line of a case.
type step struct {
	operation, name string
	given           []pair
	asked           []string // what stands after =>, without status
}

func parsePair(word string) pair {
	key, value, _ := strings.Cut(word, "=")
	return pair{key, value}
}

func parseStep(line string) *step {
	line, _, _ = strings.Cut(line, "#")
	left, right, _ := strings.Cut(line, "=>")
	words := strings.Fields(left)
	if len(words) == 0 {
		return nil
	}
	s := &step{operation: words[0]}
	words = words[1:]
	if len(words) != 0 && !strings.Contains(words[0], "=") {
		s.name, words = words[0], words[1:]
	}
	for _, word := range words {
		s.given = append(s.given, parsePair(word))
	}
	for _, word := range strings.Fields(right) {
		if key := parsePair(word).key; key != "status" {
			s.asked = append(s.asked, key)
		}
	}
	return s
}

func (s *step) value(key string) (string, bool) {
	for _, one := range s.given {
		if one.key == key {
			return one.value, true
		}
	}
	return "", false
}

func (s *step) text(key string) string {
	value, _ := s.value(key)
	return value
}

func (s *step) number(key string) uint64 { return s.numberOr(key, 0) }

func (s *step) numberOr(key string, otherwise uint64) uint64 {
	if value, ok := s.value(key); ok {
		return parse(value)
	}
	return otherwise
}

func (s *step) real(key string) float64 {
	value, ok := s.value(key)
	if !ok {
		return 0
	}
	number, err := strconv.ParseFloat(value, 64)
	if err != nil {
		panic(err)
	}
	return number
}

func parse(text string) uint64 {
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return number
}

func numbers(text string) []uint64 {
	var out []uint64
	for _, word := range strings.Split(text, ",") {
		out = append(out, parse(word))
	}
	return out
}

var plain = strings.NewReplacer("~", " ", "|", "\n").Replace
var escaped = strings.NewReplacer(" ", "~", "\n", "|").Replace

func tokensOf(spec string) []int32 {
	var ids []int32
	for _, part := range strings.Split(spec, ",") {
		kind, count, _ := strings.Cut(part, "x")
		for end := len(ids) + int(parse(count)); len(ids) < end; {
			ids = append(ids, int32((int(parse(kind))*101+len(ids)*7)%50000))
		}
	}
	return ids
}

func fill(to []byte, mark, stream, at, first, rows, rowBytes uint64) {
	for row := first; row < first+rows; row++ {
		for j := uint64(0); j < rowBytes; j++ {
			to[(row-first)*rowBytes+j] = byte(mark*29 + stream*37 + at*101 + row*11 + j*3 + (row>>8)*5 + (at>>8)*7)
		}
	}
}

// answers gives the answer of a key.
type answers func(key string) string

func words(pairs ...any) answers {
	return func(key string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == key {
				return fmt.Sprint(pairs[i+1])
			}
		}
		return "?"
	}
}

func camel(name string) string {
	out := ""
	for _, part := range strings.Split(name, "_") {
		out += strings.ToUpper(part[:1]) + part[1:]
	}
	return out
}

// members answers with the members of a struct of the package, after its words.
func members(filled any, more answers) answers {
	return func(key string) string {
		if more != nil {
			if answer := more(key); answer != "?" {
				return answer
			}
		}
		name, index, indexed := strings.Cut(key, ":")
		field := reflect.ValueOf(filled).FieldByName(camel(name))
		if !field.IsValid() {
			return "?"
		}
		if indexed {
			return fmt.Sprint(field.Index(int(parse(index))).Interface())
		}
		if field.Kind() == reflect.Array {
			bytes := make([]byte, field.Len())
			reflect.Copy(reflect.ValueOf(bytes), field)
			return hex.EncodeToString(bytes)
		}
		return fmt.Sprint(field.Interface())
	}
}
