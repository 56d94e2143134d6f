/* What every test file needs: CMocka in its required include order, and the source folder. */
#ifndef KVL_TESTS_TEST_H
#define KVL_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/status.h"

/* The call succeeded; its message is shown when it did not. */
#define assert_ok(expr) \
    do { \
        kvl_status status_ = (expr); \
        if (status_ != KVL_OK) \
            fail_msg("%s: %s: %s", #expr, kvl_status_name(status_), kvl_message()); \
    } while (0)

/* The call failed with `code`, and its message contains `part`. */
#define assert_refused(expr, code, part) \
    do { \
        kvl_status status_ = (expr); \
        if (status_ != (code)) \
            fail_msg("%s: got %s, not %s (message: %s)", #expr, kvl_status_name(status_), \
                     kvl_status_name(code), kvl_message()); \
        if (!strstr(kvl_message(), (part))) \
            fail_msg("%s: '%s' is not in: %s", #expr, (part), kvl_message()); \
    } while (0)

#endif
