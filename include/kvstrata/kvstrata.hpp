// SPDX-License-Identifier: Apache-2.0
// kvstrata/kvstrata.hpp - the whole C++ API. C++17, header-only over the C ABI (c_api.h, whose rules hold here too).
//
//   store:    name_space::open_writer -> set_source per stream -> advance after each step -> commit
//   restore:  name_space::lookup -> match::plan -> start -> wait -> run tokens replay_from .. n-1
//
// Errors are values (result<T>); nothing throws but the standard library's own allocations. Everything is in an inline
// namespace, so that two versions of these headers in one program cannot collide.
#pragma once

#include "kvstrata/buffer.hpp"
#include "kvstrata/cache.hpp"
#include "kvstrata/handle.hpp"
#include "kvstrata/layout.hpp"
#include "kvstrata/plan.hpp"
#include "kvstrata/result.hpp"
#include "kvstrata/storage.hpp"
#include "kvstrata/views.hpp"
#include "kvstrata/writer.hpp"
