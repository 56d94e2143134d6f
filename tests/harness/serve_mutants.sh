#!/bin/sh
# Breaks the scheduler (and replay) on purpose, one change at a time, and demands that the tests notice: a mutant
# that passes is a hole in them. Usage: serve_mutants.sh SOURCE_DIR BUILD_DIR (where test_serve and test_replay were
# built with Ninja). Each mutant is compiled and linked before the library, whose own object is then not taken.
set -eu
source=$(cd "$1" && pwd)
cd "$2"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
survivors=0

mutant() { # TEST FILE WHAT SED
    test=$1 file=$2 what=$3 edit=$4
    sed "$edit" "$source/$file" > "$folder/mutant.c"
    if cmp -s "$source/$file" "$folder/mutant.c"; then
        echo "no such line any more: $what ($file)"; survivors=$((survivors + 1)); return
    fi
    object=$(ninja -t commands "$test" | grep -e "-c .*/$file\$" | sed "s|.*&& ||; s| -o [^ ]*| -o $folder/mutant.o|; s| -MF [^ ]*| -MF $folder/mutant.d|; s|-c [^ ]*\$|-c $folder/mutant.c|; s|-Werror||g")
    link=$(ninja -t commands "$test" | tail -1 | sed "s| -o tests/$test| $folder/mutant.o -o $folder/$test|")
    eval "$object" 2> /dev/null && eval "$link" > /dev/null 2>&1 || { echo "does not build: $what"; survivors=$((survivors + 1)); return; }
    if timeout 60 "$folder/$test" > /dev/null 2>&1; then
        echo "SURVIVED: $what ($file)"; survivors=$((survivors + 1))
    else
        echo "noticed: $what"
    fi
}

# A change that changes nothing must pass, or failures below would prove nothing.
control() {
    test=$1 file=$2
    if mutant "$test" "$file" "control" '1s|^|/* control */ |' | grep -q "^SURVIVED"; then
        echo "control of $test passes"
    else
        echo "the control of $test fails"; exit 1
    fi
}

admit=harness/serve/admit.c step=harness/serve/step.c serve=harness/serve/serve.c replay=harness/replay/replay.c
control test_serve $admit
control test_serve $step
control test_replay $replay
mutant test_serve $admit "a preempted request is lost" '/^    queue_front(&s->queues\[of(s, request)->class\], request);/d'
mutant test_serve $admit "a preempted request keeps its slots" '/return s->pool.module->release/s/.*/    return KVL_OK;/'
mutant test_serve $admit "slots are given back twice" 's/return s->pool.module->release(s->pool.state, s->serving\[request\].seq);/(void)!s->pool.module->release(s->pool.state, s->serving[request].seq); return s->pool.module->release(s->pool.state, s->serving[request].seq);/'
mutant test_serve $admit "the oldest gives way" 's/for (int32_t i = s->n_running; i-- > 0;)/for (int32_t i = 0; i < s->n_running; i++)/'
mutant test_serve $admit "whoever was preempted often is chosen again" '/if (s->serving\[request\].whole) continue;/d'
mutant test_serve $admit "nothing is set aside after three preemptions" 's/.whole = out->preemptions >= KVL_SERVE_MAX_PREEMPTIONS}/.whole = false}/'
mutant test_serve $admit "batch requests never age" 's/if (!has_aged(s, batch)) return interactive;/return interactive;/'
mutant test_serve $admit "an item of a preempted sequence stays in the step" '/if (r->in_step) drop_item(s, request);/d'
mutant test_serve $admit "swapped tokens are forgotten" 's/r->computed = r->swapped ? r->swapped : got.n_cached;/r->computed = got.n_cached;/'
mutant test_serve $admit "recomputed tokens are not counted" 's/r->lost += r->computed;/r->lost += 0;/'
mutant test_serve $admit "a queue from behind" 's/q->ring\[(q->head + q->n++) % q->capacity\] = request;/queue_front(q, request);/; s/^void kvl_queue_back/static void queue_front(kvl_queue *q, int64_t request);\n&/'
mutant test_serve $step "a token too many in a step" 's/s->budget -= n;/s->budget -= n - 1;/'
mutant test_serve $step "a token too early" 's/.emits = r->computed + n == r->target}/.emits = r->computed + n + 1 >= r->target}/'
mutant test_serve $step "a finished request runs on" 's/if (r->generated < s->trace->requests/if (r->generated <= s->trace->requests/'
mutant test_serve $step "static batches take others in" 's/schedule != KVL_STATIC || s->batch_open/true/'
mutant test_serve $step "decodes wait for nobody" 's/if (schedule == KVL_DECODE_FIRST) KVL_TRY(add_decodes(s));/KVL_TRY(add_decodes(s));/'
mutant test_serve $serve "the queue has no limit" 's/if (limit \&\& kvl_server_waiting(s) >= limit)/if (false)/'
mutant test_serve $serve "who is turned away is forgotten" 's/return kvl_heap_push(&s->retries.*/return KVL_OK;/'
mutant test_replay $replay "a page is asked for one step late" 's/int64_t grow = s->appended + 1 +/int64_t grow = s->appended + 2 +/'
mutant test_replay $replay "the oldest gives way" 's/int32_t seq = r->newest;/int32_t seq = r->oldest;/; s/seq = r->seqs\[seq\].older;/seq = r->seqs[seq].newer;/'
mutant test_replay $replay "tokens not yet told are not counted" 's/int64_t unknown = r->n_running \* step - r->appended_sum;/int64_t unknown = 0;/'
mutant test_replay $replay "a preempted request begins anew" 's/r->done\[request\] = (int32_t)(s->done + step - s->start);/r->done[request] = 0;/'
mutant test_replay $replay "steps of a segment are one short" 's/int64_t n = next - step;/int64_t n = next - step > 1 ? next - step - 1 : 1;/'
[ $survivors = 0 ] && echo "all mutants noticed"
exit $survivors
