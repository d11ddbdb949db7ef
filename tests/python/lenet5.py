"""The model lenet5 of Starling, written in PyTorch."""
import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu


class LeNet5(nn.Module):
    def __init__(self, channels=1, classes=10):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, x):
        x = max_pool2d(relu(self.conv2(max_pool2d(relu(self.conv1(x)), 2))), 2)
        return self.fc3(relu(self.fc2(relu(self.fc1(torch.flatten(x, 1))))))
