#!/usr/bin/env python3
"""A seeded mix of requests as a kvlab CSV: log-normal lengths cut to a context of --longest tokens.

The defaults are output-heavy, with the means of ShareGPT in Kwon et al. 2023, figure 11a: prompts of 161
and outputs of 338 tokens on average. Usage: make_mix.py [--requests N] [--prompt MEAN] [--output MEAN] > F.csv"""
import argparse
import math
import random

p = argparse.ArgumentParser()
p.add_argument("--requests", type=int, default=4000)
p.add_argument("--prompt", type=float, default=161)
p.add_argument("--output", type=float, default=338)
p.add_argument("--prompt-sigma", type=float, default=1.2)
p.add_argument("--output-sigma", type=float, default=0.9)
p.add_argument("--longest", type=int, default=2048)
p.add_argument("--per-second", type=float, default=4)
p.add_argument("--seed", type=int, default=1)
a = p.parse_args()
random.seed(a.seed)


def length(mean, sigma, most):
    return max(1, min(most, round(random.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))


print("arrival_s,prompt,output")
for i in range(a.requests):
    prompt = length(a.prompt, a.prompt_sigma, a.longest // 2)
    print(f"{i / a.per_second:.6f},{prompt},{length(a.output, a.output_sigma, a.longest - prompt)}")
