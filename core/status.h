/* Status codes and the one-line message that goes with a failure.
 *
 * Every fallible kvlab function returns a kvl_status. On anything but KVL_OK it has also written
 * one line into a thread-local buffer with kvl_fail(): the line names the file, field, value and
 * limit
 * ("head_dim 320: flash handles 1 to 256"). Nothing below main() exits or prints.
 */
#ifndef KVL_CORE_STATUS_H
#define KVL_CORE_STATUS_H

typedef enum kvl_status {
    KVL_OK = 0,
    KVL_ERR_INPUT,       /* bad argument, file or value given by the user; exit code 2 */
    KVL_ERR_IO,          /* unreadable, unwritable, full disk; exit code 2 */
    KVL_ERR_UNSUPPORTED, /* a valid combination that this build or module does not do; says why */
    KVL_ERR_OOM,         /* host or device memory, or the KV pool, does not suffice */
    KVL_ERR_INTERNAL     /* a defect of kvlab itself; exit code 70 */
} kvl_status;

/* Stores a printf-style one-line message for this thread and returns `code`, so that a failing
 * check reads `return kvl_fail(KVL_ERR_INPUT, "...")`. Messages are cut at 1,023 bytes; control
 * characters and invalid UTF-8 (they may come from hostile files) are replaced by '?'. */
kvl_status kvl_fail(kvl_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prefixes the current message ("prefix: old message"), for callers that know the file or field. */
kvl_status kvl_fail_prefix(kvl_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The last message of this thread; "" when none. Valid until the next kvl_fail on this thread. */
const char *kvl_message(void);

/* Short lower-case name of a code: "ok", "input", "io", "unsupported", "oom", "internal". */
const char *kvl_status_name(kvl_status code);

/* Propagates a failure to the caller. */
#define KVL_TRY(expr) \
    do { \
        kvl_status kvl_try_status_ = (expr); \
        if (kvl_try_status_ != KVL_OK) return kvl_try_status_; \
    } while (0)

#endif
