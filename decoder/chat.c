#include "decoder/chat.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "decoder/chat_canon.h"

enum { TEMPLATE_MAX_BYTES = 1 << 20 };

/* What a template prints around one system and one user message. Texts are pieces of the canonical
 * template, in which \n and \' are still escaped. */
typedef struct literal {
    const char *text;
    size_t bytes;
} literal;

typedef struct plan {
    kvl_chat_kind kind;
    kvl_buffer canon;
    bool bos;
    bool has_default_system;
    literal default_system; /* chatml */
    bool opens_thought;     /* chatml: the generation prompt ends with <think> */
    bool dated;             /* llama-3.1: knowledge and date lines open the system message */
    literal date;
    literal inst, inst_end; /* mistral: what stands before and after the user's text */
    bool system_joins;      /* mistral: the system text goes before the user's */
} plan;

/* ---- reading the canonical template ------------------------------------------------------------
 */

static bool has(const plan *p, const char *part) {
    return strstr(p->canon.data, part) != NULL;
}

static kvl_status refuse(const plan *p, const char *kind, const char *why) {
    return kvl_fail(KVL_ERR_UNSUPPORTED, "chat template (%s) %s: '%.60s...'", kind, why,
                    p->canon.data);
}

static bool same(literal a, literal b) {
    return a.bytes == b.bytes && !memcmp(a.text, b.text, a.bytes);
}

/* The default system line: '<|im_start|>system\n...<|im_end|>\n' with nothing but text in it. */
static kvl_status chatml_default(plan *p) {
    static const char open[] = "<|im_start|>system\\n", close[] = "<|im_end|>\\n";
    const char *at = p->canon.data;
    while ((at = strstr(at, open))) {
        at += strlen(open);
        size_t n = 0;
        while (at[n] && at[n] != '\'' && at[n] != '{' && strncmp(at + n, close, strlen(close)))
            n += at[n] == '\\' && at[n + 1] ? 2 : 1;
        if (n == 0 || strncmp(at + n, close, strlen(close))) continue;
        literal found = {at, n};
        if (p->has_default_system && !same(found, p->default_system))
            return refuse(p, "chatml", "has two default system lines");
        p->has_default_system = true;
        p->default_system = found;
    }
    return KVL_OK;
}

static kvl_status chatml_prompt(plan *p) {
    static const struct {
        const char *tail;
        bool opens_thought;
    } known[] = {
        {"{{'<|im_start|>assistant\\n'}}{%endif%}", false},
        {"<|im_start|>assistant\\n{%endif%}", false},
        {"{{'<|im_start|>assistant\\n<think>\\n'}}{%endif%}", true},
        {"{{'<|im_start|>assistant\\n'}}{%ifenable_thinkingisdefinedandenable_thinkingisfalse%}"
         "{{'<think>\\n\\n</think>\\n\\n'}}{%endif%}{%endif%}",
         false},
        {"{{'<|im_start|>assistant\\n'}}{%ifenable_thinkingisdefinedandenable_thinkingisfalse%}"
         "{{'<think>\\n\\n</think>\\n\\n'}}{%else%}{{'<think>\\n'}}{%endif%}{%endif%}",
         true},
    };
    static const char flag[] = "{%ifadd_generation_prompt%}";
    const char *tail = NULL;
    for (const char *at = p->canon.data; (at = strstr(at, flag));) tail = at += strlen(flag);
    for (size_t i = 0; tail && i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(tail, known[i].tail)) continue;
        p->opens_thought = known[i].opens_thought;
        return KVL_OK;
    }
    return refuse(p, "chatml", "has a generation prompt that is not known");
}

static kvl_status read_chatml(plan *p) {
    static const char *const messages[] = {
        "'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>'+'\\n'",
        "'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>\\n'",
        "'<|im_start|>'+message.role+'\\n'+content+'<|im_end|>'+'\\n'",
        "<|im_start|>{{message.role}}\\n{{message.content}}<|im_end|>\\n",
    };
    p->kind = KVL_CHAT_CHATML;
    bool known = false;
    for (int i = 0; i < 4; i++) known = known || has(p, messages[i]);
    if (!known || (has(p, messages[2]) && !has(p, "{%setcontent=message.content%}")))
        return refuse(p, "chatml", "prints messages in a form that is not known");
    if (has(p, "strftime_now")) return refuse(p, "chatml", "prints today's date");
    if (has(p, "system_message")) return refuse(p, "chatml", "builds its system message");
    KVL_TRY(chatml_default(p));
    return chatml_prompt(p);
}

/* The value of {%set date_string = '...'%}. */
static bool find_date(plan *p) {
    static const char set[] = "{%setdate_string='";
    const char *at = strstr(p->canon.data, set);
    if (!at) return false;
    at += strlen(set);
    p->date = (literal){at, strcspn(at, "'")};
    return true;
}

static kvl_status read_llama3(plan *p) {
    p->kind = KVL_CHAT_LLAMA3;
    if (!has(p, "'<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'+message.content|trim+"
                "'<|eot_id|>'") ||
        !has(p, "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'"))
        return refuse(p, "llama-3", "prints messages in a form that is not known");
    if (has(p, "strftime_now"))
        return refuse(p, "llama-3",
                      "prints today's date (strftime_now), so that its text is "
                      "another every day");
    p->dated = has(p, "'<|start_header_id|>system<|end_header_id|>\\n\\n'");
    bool lines = has(p, "{{'Cutting Knowledge Date: December 2023\\n'}}"
                        "{{'Today Date: '+date_string+'\\n\\n'}}") &&
                 has(p, "{{system_message}}{{'<|eot_id|>'}}") &&
                 has(p, "setsystem_message=messages[0].content|trim%}");
    if (p->dated && !(lines && find_date(p)))
        return refuse(p, "llama-3", "opens with a system message that is not known");
    return KVL_OK;
}

/* The string literal around the first `mark`; false unless every later one is the same. */
static bool find_mark(const plan *p, const char *mark, literal *out) {
    *out = (literal){0};
    for (const char *at = p->canon.data; (at = strstr(at, mark)); at += strlen(mark)) {
        const char *begin = at, *end = at + strlen(mark);
        if (begin > p->canon.data && begin[-1] == ' ') begin--;
        if (*end == ' ') end++;
        literal found = {begin, (size_t)(end - begin)};
        if (begin == p->canon.data || begin[-1] != '\'' || *end != '\'') return false;
        if (out->text && !same(*out, found)) return false;
        *out = found;
    }
    return out->text != NULL;
}

static kvl_status read_mistral(plan *p) {
    static const char *const others[] = {
        "<<SYS>>", "[SYSTEM_PROMPT]", "strftime_now",    "default_system_message",
        "|trim",   ".strip(",         "[MODEL_SETTINGS]"};
    p->kind = KVL_CHAT_MISTRAL;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (has(p, others[i])) {
            char why[64] = "holds ";
            return refuse(p, "mistral", strcat(why, others[i]));
        }
    if (!find_mark(p, "[INST]", &p->inst) || !find_mark(p, "[/INST]", &p->inst_end))
        return refuse(p, "mistral", "uses [INST] in a form that is not known");
    kvl_buffer user = {0};
    kvl_buffer_printf(&user, "'%.*s'+message.content+'%.*s'", (int)p->inst.bytes, p->inst.text,
                      (int)p->inst_end.bytes, p->inst_end.text);
    bool known = !user.failed && has(p, user.data);
    kvl_buffer_free(&user);
    if (!known) return refuse(p, "mistral", "prints messages in a form that is not known");
    p->system_joins = has(p, "+system_message+'\\n\\n'+message.content+");
    return KVL_OK;
}

static kvl_status make_plan(const char *text, plan *p) {
    size_t bytes = strlen(text);
    if (bytes > TEMPLATE_MAX_BYTES)
        return kvl_fail(KVL_ERR_INPUT, "chat template of %zu bytes: at most %d", bytes,
                        TEMPLATE_MAX_BYTES);
    KVL_TRY(kvl_chat_canon(text, &p->canon));
    if (bytes == 0 || !p->canon.data)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "chat template is empty");
    p->bos = has(p, "bos_token");
    if (has(p, "<|im_start|>")) return read_chatml(p);
    if (has(p, "<|start_header_id|>")) return read_llama3(p);
    if (has(p, "[INST]")) return read_mistral(p);
    return kvl_fail(KVL_ERR_UNSUPPORTED,
                    "chat template '%.60s...': known are chatml, llama-3 and mistral", text);
}

kvl_status kvl_chat_recognise(const char *template_text, kvl_chat_kind *kind) {
    plan p = {0};
    kvl_status status = make_plan(template_text, &p);
    kvl_buffer_free(&p.canon);
    if (status == KVL_OK) *kind = p.kind;
    return status;
}

/* ---- rendering ---------------------------------------------------------------------------------
 */

static void add_literal(literal l, kvl_buffer *out) {
    for (size_t i = 0; i < l.bytes; i++) {
        char c = l.text[i];
        if (c == '\\' && i + 1 < l.bytes) c = l.text[++i] == 'n' ? '\n' : l.text[i];
        kvl_buffer_add(out, &c, 1);
    }
}

/* Bytes of the white space character at s (what Python's str.strip takes), or 0. */
static size_t space_bytes(const char *text, size_t bytes) {
    static const char *const wide[] = {"\xc2\x85", "\u00a0", "\u1680", "\u2028",
                                       "\u2029",   "\u202f", "\u205f", "\u3000"};
    uint8_t c = bytes ? (uint8_t)text[0] : 'x';
    if ((c >= 9 && c <= 13) || (c >= 0x1c && c <= ' ')) return 1;
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        if (strlen(wide[i]) <= bytes && !memcmp(text, wide[i], strlen(wide[i])))
            return strlen(wide[i]);
    bool quad = bytes >= 3 && !memcmp(text, "\xe2\x80", 2) && (uint8_t)text[2] <= 0x8a;
    return quad ? 3 : 0; /* U+2000 to U+200A */
}

static void add_trimmed(const char *text, kvl_buffer *out) {
    size_t begin = 0, end = strlen(text), n;
    while ((n = space_bytes(text + begin, end - begin))) begin += n;
    for (size_t size = 1; size <= 3 && size <= end - begin;)
        if (space_bytes(text + end - size, size) == size)
            end -= size, size = 1;
        else
            size++;
    kvl_buffer_add(out, text + begin, end - begin);
}

static void render_chatml(const plan *p, const char *system, const char *user, kvl_buffer *out) {
    if (system || p->has_default_system) {
        kvl_buffer_text(out, "<|im_start|>system\n");
        if (system)
            kvl_buffer_text(out, system);
        else
            add_literal(p->default_system, out);
        kvl_buffer_text(out, "<|im_end|>\n");
    }
    kvl_buffer_text(out, "<|im_start|>user\n");
    kvl_buffer_text(out, user);
    kvl_buffer_text(out, "<|im_end|>\n<|im_start|>assistant\n");
    if (p->opens_thought) kvl_buffer_text(out, "<think>\n");
}

static void render_llama3(const plan *p, const char *system, const char *user, kvl_buffer *out) {
    if (system || p->dated) kvl_buffer_text(out, "<|start_header_id|>system<|end_header_id|>\n\n");
    if (p->dated) {
        kvl_buffer_text(out, "Cutting Knowledge Date: December 2023\nToday Date: ");
        add_literal(p->date, out);
        kvl_buffer_text(out, "\n\n");
    }
    if (system) add_trimmed(system, out);
    if (system || p->dated) kvl_buffer_text(out, "<|eot_id|>");
    kvl_buffer_text(out, "<|start_header_id|>user<|end_header_id|>\n\n");
    add_trimmed(user, out);
    kvl_buffer_text(out, "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
}

static void render_mistral(const plan *p, const char *system, const char *user, kvl_buffer *out) {
    add_literal(p->inst, out);
    if (system) {
        kvl_buffer_text(out, system);
        kvl_buffer_text(out, "\n\n");
    }
    kvl_buffer_text(out, user);
    add_literal(p->inst_end, out);
}

kvl_status kvl_chat_render(const char *template_text, const char *system, const char *user,
                           const char *bos_text, kvl_buffer *out) {
    plan p = {0};
    kvl_status status = make_plan(template_text, &p);
    if (status == KVL_OK && p.kind == KVL_CHAT_MISTRAL && system && !p.system_joins)
        status = refuse(&p, "mistral", "has no place for a system message");
    if (status == KVL_OK && p.bos) kvl_buffer_text(out, bos_text);
    if (status == KVL_OK && p.kind == KVL_CHAT_CHATML) render_chatml(&p, system, user, out);
    if (status == KVL_OK && p.kind == KVL_CHAT_LLAMA3) render_llama3(&p, system, user, out);
    if (status == KVL_OK && p.kind == KVL_CHAT_MISTRAL) render_mistral(&p, system, user, out);
    kvl_buffer_free(&p.canon);
    if (status == KVL_OK && out->failed)
        status = kvl_fail(KVL_ERR_OOM, "chat prompt: out of memory");
    return status;
}
