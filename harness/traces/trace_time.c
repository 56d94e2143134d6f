/* Times as traces write them, in nanoseconds: integers only, so that nothing is rounded. */
#include <string.h>

#include "harness/traces/trace_internal.h"

enum { MAX_DECIMALS = 9, MAX_WHOLE_DIGITS = 10 };
static const int64_t NS = 1000000000, MAX_SECONDS = 2147483647; /* 68 years */

typedef struct cursor {
    const char *text;
    size_t length, at;
    const char *why;
} cursor;

static bool is_digit(const cursor *c) {
    return c->at < c->length && c->text[c->at] >= '0' && c->text[c->at] <= '9';
}

static bool take_char(cursor *c, const char *any) {
    if (c->at == c->length || c->text[c->at] == '\0' || !strchr(any, c->text[c->at])) return false;
    c->at++;
    return true;
}

/* `n` digits whose value lies in low..high. */
static bool take_field(cursor *c, int n, int64_t low, int64_t high, int64_t *out) {
    size_t start = c->at;
    *out = 0;
    for (int i = 0; i < n; i++, c->at++) {
        if (!is_digit(c)) return c->why = "not a time: YYYY-MM-DD HH:MM:SS[.fraction]", false;
        *out = *out * 10 + (c->text[c->at] - '0');
    }
    if (*out >= low && *out <= high) return true;
    c->at = start;
    c->why = "not a time: a field is out of its range";
    return false;
}

/* ".6805900" or nothing. A digit below a nanosecond must be 0: it could not be kept. */
static bool take_fraction(cursor *c, int64_t *ns) {
    int64_t unit = NS;
    *ns = 0;
    if (!take_char(c, ".")) return true;
    if (!is_digit(c)) return c->why = "a digit must follow the point", false;
    for (int n = 0; is_digit(c); n++, c->at++) {
        int digit = c->text[c->at] - '0';
        if (n >= MAX_DECIMALS && digit)
            return c->why = "more than nine decimals: below a nanosecond", false;
        unit /= 10;
        *ns += digit * unit;
    }
    return true;
}

static bool end(cursor *c, size_t *fault, const char **why, bool good) {
    if (good && c->at < c->length) {
        c->why = "unexpected character after the time";
        good = false;
    }
    *fault = c->at;
    *why = c->why;
    return good;
}

bool kvl_parse_seconds(const char *text, size_t length, int64_t *ns, size_t *fault,
                       const char **why) {
    cursor c = {text, length, 0, "not a number of seconds"};
    int64_t seconds = 0, fraction = 0;
    bool good = is_digit(&c);
    for (; good && is_digit(&c); c.at++) {
        if (c.at < MAX_WHOLE_DIGITS) seconds = seconds * 10 + (text[c.at] - '0');
        if (c.at >= MAX_WHOLE_DIGITS || seconds > MAX_SECONDS) {
            c.why = "more than 2147483647 seconds";
            good = false;
            break;
        }
    }
    good = good && take_fraction(&c, &fraction);
    if (good) *ns = seconds * NS + fraction;
    return end(&c, fault, why, good);
}

/* Days since 1970-01-01 of the proleptic Gregorian calendar (Howard Hinnant's algorithm). */
static int64_t days_of(int64_t year, int64_t month, int64_t day) {
    year -= month <= 2;
    int64_t era = year / 400, of_era = year - era * 400;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static int64_t days_in(int64_t year, int64_t month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap);
}

/* Z, +HH:MM or -HH:MM; nothing is UTC too. */
static bool take_zone(cursor *c, int64_t *minutes) {
    int64_t h, m;
    *minutes = 0;
    if (take_char(c, "Z") || c->at == c->length) return true;
    bool west = c->text[c->at] == '-';
    if (!take_char(c, "+-")) return c->why = "unexpected character after the time", false;
    if (!take_field(c, 2, 0, 23, &h)) return false;
    take_char(c, ":");
    if (!take_field(c, 2, 0, 59, &m)) return false;
    *minutes = (west ? -1 : 1) * (h * 60 + m);
    return true;
}

bool kvl_parse_datetime(const char *text, size_t length, int64_t *ns, size_t *fault,
                        const char **why) {
    cursor c = {text, length, 0, "not a time: YYYY-MM-DD HH:MM:SS[.fraction]"};
    int64_t year, month, day, hour, minute, second, fraction, zone;
    bool good = take_field(&c, 4, 1970, 2200, &year) && take_char(&c, "-") &&
                take_field(&c, 2, 1, 12, &month) && take_char(&c, "-") &&
                take_field(&c, 2, 1, days_in(year, month), &day) && take_char(&c, " T") &&
                take_field(&c, 2, 0, 23, &hour) && take_char(&c, ":") &&
                take_field(&c, 2, 0, 59, &minute) && take_char(&c, ":") &&
                take_field(&c, 2, 0, 60, &second) && take_fraction(&c, &fraction) &&
                take_zone(&c, &zone);
    if (good)
        *ns = ((days_of(year, month, day) * 24 + hour) * 60 + minute - zone) * 60 * NS +
              second * NS + fraction;
    return end(&c, fault, why, good);
}
