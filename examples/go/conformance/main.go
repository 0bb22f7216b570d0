// SPDX-License-Identifier: Apache-2.0

// Conformance answers the conformance cases with the Go package (tests/conformance/README.md says what the steps mean).
//
// usage: conformance CASES FOLDER
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	defer file.Close()
	var now *testCase
	var name string
	var answers []string
	finish := func() {
		if now != nil {
			now.end()
			fmt.Printf("%s: %s\n", name, strings.Join(answers, " | "))
		}
	}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		step := parseStep(lines.Text())
		if step == nil {
			continue
		}
		if step.operation == "case" {
			finish()
			now, name, answers = newCase(os.Args[2]), step.name, nil
			continue
		}
		answers = append(answers, now.run(step))
	}
	finish()
}
