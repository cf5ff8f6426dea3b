/* The release of the loaded library. */
#ifndef DOCA_VERSION_H_
#define DOCA_VERSION_H_

#ifdef __cplusplus
extern "C" {
#endif

/* Returns a static string such as "3.0.0058". For messages, not for decisions. */
const char *doca_version_runtime(void);

#ifdef __cplusplus
}
#endif
#endif
