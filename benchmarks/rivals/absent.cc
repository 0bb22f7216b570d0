// SPDX-License-Identifier: Apache-2.0
// In the place of those rivals whose library was not there when this was built.
#include "benchmarks/rivals/rival.h"

namespace kvstrata::benchmarks {

#ifdef KVSTRATA_NO_ROCKSDB
Rivals MakeRocksDb() { return {}; }
#endif
#ifdef KVSTRATA_NO_LMDB
Rivals MakeLmdb() { return {}; }
#endif

}  // namespace kvstrata::benchmarks
