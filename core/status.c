#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"

static _Thread_local char message[1024];

/* Hostile names end up in messages; keep them to one printable line of valid UTF-8. */
static void make_printable(char *text) {
    bool valid = kvl_utf8_valid(text, strlen(text));
    for (char *c = text; *c; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !valid)) *c = '?';
    }
}

kvl_status kvl_fail(kvl_status code, const char *format, ...) {
    char line[sizeof message]; /* arguments may point into `message` */
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    memcpy(message, line, sizeof line);
    make_printable(message);
    return code;
}

kvl_status kvl_fail_prefix(kvl_status code, const char *format, ...) {
    char prefix[512], old[sizeof message];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    memcpy(old, message, sizeof old);
    return kvl_fail(code, "%s: %s", prefix, old);
}

const char *kvl_message(void) {
    return message;
}

const char *kvl_status_name(kvl_status code) {
    static const char *const names[] = {"ok", "input", "io", "unsupported", "oom", "internal"};
    return (unsigned)code < sizeof names / sizeof *names ? names[code] : "internal";
}
