// SPDX-License-Identifier: Apache-2.0
// Runs a function in a forked child and brings its answer back.
//
// Thread rule: one thread; the child runs only what is given and ends without destructors.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace kvstrata::test {

// What `body` returned in the child, 0 to 255; -1 when the child did not end by itself.
template <typename Body>
int RunInChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace kvstrata::test
