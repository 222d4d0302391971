"""The recogniser in PyTorch; started again, it goes on from its checkpoint."""

from pathlib import Path

import numpy as np
import torch
import trainer_client.torch
from torch import nn
from torch.nn import functional

CHECKPOINT = Path("checkpoints/torch.pt")


class Recogniser(nn.Module):
    """Two convolutions that halve the frames, two that look further, and a label for each frame that is left."""

    def __init__(self, bands=40, channels=64, labels=11):  # the blank is 0, the alphabet's characters count from 1
        super().__init__()
        sizes = ((bands, 2), (channels, 2), (channels, 1), (channels, 1))
        self.convolutions = nn.ModuleList(nn.Conv1d(size, channels, 5, stride, 2) for size, stride in sizes)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in sizes)
        self.labels = nn.Linear(channels, labels)
        for convolution in self.convolutions:
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")

    def forward(self, audio):
        x = (audio + 8) / 6  # logarithms of energies, to about -1 to 2
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(functional.relu(convolution(x.mT)).mT)
        return functional.log_softmax(self.labels(x), -1)


def mean_loss(batch):
    """Over rows that hold a sample."""
    frames, rows = (batch["audio_length"] + 3) // 4, batch["weight"]
    scores = model(batch["audio"]).transpose(0, 1)
    losses = functional.ctc_loss(scores, batch["text"], frames, batch["text_length"], reduction="none")
    return losses[rows > 0].mean()


def train_step(batch):
    optimizer.zero_grad()
    loss = mean_loss(batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    return loss.item()


torch.manual_seed(7)
model = Recogniser()
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
train = trainer_client.connect("tcp://127.0.0.1:7400", stream="train")
dev = trainer_client.connect("tcp://127.0.0.1:7400", stream="dev")
data, dev_data = trainer_client.torch.FeedTensors(train), trainer_client.torch.FeedTensors(dev)
parts = {"model": model, "optimizer": optimizer, "data": data}
if CHECKPOINT.exists():
    for name, state in torch.load(CHECKPOINT).items():
        parts[name].load_state_dict(state)
while train.epoch < 10:
    losses = [train_step(batch) for batch in data]
    with torch.no_grad():
        judged = [mean_loss(batch).item() for batch in dev_data]
    print(f"epoch {train.epoch}: loss {np.mean(losses):.2f}, dev loss {np.mean(judged):.2f}", flush=True)
    CHECKPOINT.parent.mkdir(exist_ok=True)
    torch.save({name: part.state_dict() for name, part in parts.items()}, CHECKPOINT)
