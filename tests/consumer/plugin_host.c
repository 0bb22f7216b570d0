/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the plugin without knowing kvstrata. */
#include <stdio.h>

const char* plugin_cache_version(void);

int main(void) { return printf("%s\n", plugin_cache_version()) > 1 ? 0 : 1; }
