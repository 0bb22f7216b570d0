// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/quiet_thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "lib/base/status.h"

namespace kvstrata::core::storage {
namespace {

// Threads inherit the mask of the one that makes them, so that no signal can reach them even for a moment.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

absl::StatusOr<std::thread> StartQuietThread(const std::string& name, std::function<void()> body) {
  const AllSignalsBlocked blocked;
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name.c_str());
    return thread;
  } catch (const std::system_error& error) {
    return base::IoError("start the thread", name, error.code().value());
  }
}

}  // namespace kvstrata::core::storage
