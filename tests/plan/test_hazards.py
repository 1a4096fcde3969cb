"""What a run is warned of because of its model."""

from torch import nn

from codecl.plan.hazards import hazards
from tests.problems import build, config, tasks


class Centred(nn.Module):
    """Subtracts the mean of its batch."""

    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(72), nn.Linear(72, 3)

    def forward(self, x):
        x = self.norm(x.flatten(1))
        return self.fc(x - x.mean(0))


def test_a_model_that_mixes_the_images_of_a_batch_is_told():
    plain = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(72), nn.Linear(72, 3))
    found = [" ".join(hazards(build(model, tasks(1), config())[0])) for model in (Centred(), plain)]
    assert "depends on the other images of its batch" in found[0]
    assert "depends on the other images" not in found[1]
