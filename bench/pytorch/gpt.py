"""gpt (GPT-2's architecture): 6 layers, width 384, 6 heads, 256 tokens, vocabulary 65.

Each rank has 8 samples per step. The optimizer is AdamW.
"""
import torch
from torch import nn
from torch.nn import functional

import common

BATCH, LAYERS, WIDTH, HEADS, TOKENS, VOCABULARY = 8, 6, 384, 6, 256, 65


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x):
        n, t, _ = x.shape
        q, k, v = (y.view(n, t, HEADS, WIDTH // HEADS).transpose(1, 2) for y in self.attention(x).split(WIDTH, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(y.transpose(1, 2).reshape(n, t, WIDTH))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.out(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.apply(self.initialize)

    @staticmethod
    def initialize(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, x):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        return functional.linear(self.ln_f(self.blocks(h)), self.tokens.weight)  # tied weights, as in GPT-2


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, fused=True)


def batches(generator):
    texts = [torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1), generator=generator) for _ in range(8)]
    return [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts]


def loss(output, target):
    return functional.cross_entropy(output.view(-1, VOCABULARY), target.view(-1))


WORK = common.Work("gpt", BATCH, Gpt, optimizer, batches, loss,
                   gemms=tuple((BATCH * TOKENS, n, k) for n, k in
                               ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))))

if __name__ == "__main__":
    common.run(WORK)
