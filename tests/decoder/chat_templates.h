/* Chat templates as model files hold them, cut to the branches that print a system and a user
 * message (tools and assistant turns left out). */
#ifndef KVL_TESTS_CHAT_TEMPLATES_H
#define KVL_TESTS_CHAT_TEMPLATES_H

static const char template_chatml[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* As in GGUF files: real newlines inside the quotes. */
static const char template_smollm2[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";

static const char template_qwen2[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static const char template_qwen25[] =
    "{%- if tools %}\n"
    "    {{- '<|im_start|>system\\n' }}\n"
    "    {%- if messages[0]['role'] == 'system' %}\n"
    "        {{- messages[0]['content'] }}\n"
    "    {%- else %}\n"
    "        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}\n"
    "    {%- endif %}\n"
    "    {{- \"<|im_end|>\\n\" }}\n"
    "{%- else %}\n"
    "    {%- if messages[0]['role'] == 'system' %}\n"
    "        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n"
    "    {%- else %}\n"
    "        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
    "assistant.<|im_end|>\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' "
    "}}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n";

#define QWEN3_BODY \
    "{%- if tools %}\n" \
    "    {{- '<|im_start|>system\\n' }}\n" \
    "    {%- if messages[0].role == 'system' %}\n" \
    "        {{- messages[0].content + '\\n\\n' }}\n" \
    "    {%- endif %}\n" \
    "{%- else %}\n" \
    "    {%- if messages[0].role == 'system' %}\n" \
    "        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}\n" \
    "    {%- endif %}\n" \
    "{%- endif %}\n" \
    "{%- for message in messages %}\n" \
    "    {%- if message.content is string %}\n" \
    "        {%- set content = message.content %}\n" \
    "    {%- else %}\n" \
    "        {%- set content = '' %}\n" \
    "    {%- endif %}\n" \
    "    {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) " \
    "%}\n" \
    "        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}\n" \
    "    {%- endif %}\n" \
    "{%- endfor %}\n" \
    "{%- if add_generation_prompt %}\n"

static const char template_qwen3[] =
    QWEN3_BODY "    {{- '<|im_start|>assistant\\n' }}\n"
               "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
               "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
               "    {%- endif %}\n"
               "{%- endif %}";

static const char template_qwen3_thinking[] =
    QWEN3_BODY "    {{- '<|im_start|>assistant\\n<think>\\n' }}\n"
               "{%- endif %}";

static const char template_llama3[] =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | "
    "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

#define LLAMA31_TAIL \
    "{%- if messages[0]['role'] == 'system' %}\n" \
    "    {%- set system_message = messages[0]['content']|trim %}\n" \
    "    {%- set messages = messages[1:] %}\n" \
    "{%- else %}\n" \
    "    {%- set system_message = \"\" %}\n" \
    "{%- endif %}\n" \
    "{#- System message + builtin tools #}\n" \
    "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n" \
    "{%- if builtin_tools is defined or tools is not none %}\n" \
    "    {{- \"Environment: ipython\\n\" }}\n" \
    "{%- endif %}\n" \
    "{{- \"Cutting Knowledge Date: December 2023\\n\" }}\n" \
    "{{- \"Today Date: \" + date_string + \"\\n\\n\" }}\n" \
    "{{- system_message }}\n" \
    "{{- \"<|eot_id|>\" }}\n" \
    "{%- for message in messages %}\n" \
    "    {%- if not (message.role == 'ipython' or message.role == 'tool') %}\n" \
    "        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ " \
    "message['content'] | trim + '<|eot_id|>' }}\n" \
    "    {%- endif %}\n" \
    "{%- endfor %}\n" \
    "{%- if add_generation_prompt %}\n" \
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n" \
    "{%- endif %}\n"

static const char template_llama31[] = "{{- bos_token }}\n"
                                       "{%- if not date_string is defined %}\n"
                                       "    {%- set date_string = \"26 Jul 2024\" %}\n"
                                       "{%- endif %}\n"
                                       "{%- if not tools is defined %}\n"
                                       "    {%- set tools = none %}\n"
                                       "{%- endif %}\n" LLAMA31_TAIL;

static const char template_llama32[] =
    "{{- bos_token }}\n"
    "{%- if not date_string is defined %}\n"
    "    {%- if strftime_now is defined %}\n"
    "        {%- set date_string = strftime_now(\"%d %b %Y\") %}\n"
    "    {%- else %}\n"
    "        {%- set date_string = \"26 Jul 2024\" %}\n"
    "    {%- endif %}\n"
    "{%- endif %}\n" LLAMA31_TAIL;

static const char template_mistral_v02[] =
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != "
    "(loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}"
    "{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' "
    "}}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}";

static const char template_mistral_v3[] =
    "{%- if messages[0][\"role\"] == \"system\" %}\n"
    "    {%- set system_message = messages[0][\"content\"] %}\n"
    "    {%- set loop_messages = messages[1:] %}\n"
    "{%- else %}\n"
    "    {%- set loop_messages = messages %}\n"
    "{%- endif %}\n"
    "{{- bos_token }}\n"
    "{%- for message in loop_messages %}\n"
    "    {%- if message[\"role\"] == \"user\" %}\n"
    "        {%- if loop.last and system_message is defined %}\n"
    "            {{- \"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + "
    "\"[/INST]\" }}\n"
    "        {%- else %}\n"
    "            {{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}\n"
    "        {%- endif %}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n";

#endif
