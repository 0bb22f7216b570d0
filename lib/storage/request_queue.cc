// SPDX-License-Identifier: Apache-2.0
#include "lib/storage/request_queue.h"

#include <cassert>

#include "lib/storage/request_check.h"

namespace kvstrata::core::storage {

void RequestQueue::Ring::Push(const Waiting& waiting) {
  assert(count < places.size());
  places[(first + count) % places.size()] = waiting;
  ++count;
}

RequestQueue::Waiting RequestQueue::Ring::Pop() {
  const Waiting waiting = places[first];
  first = (first + 1) % places.size();
  --count;
  return waiting;
}

void RequestQueue::Push(const Request& request) {
  Waiting waiting{request, arrivals_++, 0};
  const Put* const put = std::get_if<Put>(&request.operation);
  if (put == nullptr) return gets_.Push(waiting);
  // A size that does not fit in 64 bits was refused when it was submitted.
  waiting.bytes = PayloadBytes(*put).value_or(0);
  waiting_bytes_ += waiting.bytes;
  puts_.Push(waiting);
}

bool RequestQueue::PutsReady() const {
  if (puts_.count == 0) return false;
  return jobs_ < kFewJobs || (waiting_bytes_ >= kFullJobBytes && job_bytes_ < kManyBytes);
}

void RequestQueue::Take(Job* job) {
  job->count = 0;
  job->bytes = 0;
  if (!PutsReady() || (gets_.count > 0 && gets_.front().arrival < puts_.front().arrival)) {
    job->requests[job->count++] = gets_.Pop().request;
    return;
  }
  const auto fits = [&] { return job->count == 0 || job->bytes + puts_.front().bytes <= kJobBytes; };
  while (puts_.count > 0 && job->count < job->requests.size() && fits()) {
    const Waiting waiting = puts_.Pop();
    job->bytes += waiting.bytes;
    job->requests[job->count++] = waiting.request;
  }
  waiting_bytes_ -= job->bytes;
  job_bytes_ += job->bytes;
  ++jobs_;
}

void RequestQueue::End(const Job& job) {
  if (!std::holds_alternative<Put>(job.requests[0].operation)) return;
  job_bytes_ -= job.bytes;
  --jobs_;
}

}  // namespace kvstrata::core::storage
