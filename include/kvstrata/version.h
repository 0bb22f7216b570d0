/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstrata/version.h - the numbers that name a build. C99, includes nothing.
 *
 * Three numbers live apart: the release, the ABI (equals the shared library's SONAME number; 0 = symbols may
 * still change), and the newest on-disk format this build writes.
 */
#ifndef KVSTRATA_VERSION_H
#define KVSTRATA_VERSION_H

#define KVSTRATA_VERSION_MAJOR 0
#define KVSTRATA_VERSION_MINOR 1
#define KVSTRATA_VERSION_PATCH 0
#define KVSTRATA_ABI_VERSION 0
#define KVSTRATA_FORMAT_VERSION 2

#endif /* KVSTRATA_VERSION_H */
