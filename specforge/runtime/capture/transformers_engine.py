"""In: documents. Out: the target's hidden states of each, from a forward pass in this process.

Layer id i is the OUTPUT of decoder layer i, counted from 0, before any norm: Hugging Face's hidden_states[i + 1].
The LM head is never computed. Legend: B documents, S tokens of the longest, T tokens of one, C captured width
(layers side by side), H target hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from specforge.runtime.data.batch import Features, upload
from specforge.runtime.data.pack import Document
from specforge.runtime.target import TargetModel
from specforge.settings import CaptureSettings


class TransformersEngine:
    """Captures in process. Raises ValueError for a layer that the target does not have."""

    def __init__(self, target: TargetModel, settings: CaptureSettings) -> None:
        self._target = target
        self._settings = settings
        self._decoder = target.decoder
        self._dtype = getattr(torch, settings.dtype)
        count = len(self._decoder.layers)
        wrong = [i for i in settings.layers if not 0 <= i < count]
        if wrong:
            raise ValueError(
                f"capture of {target.settings.name}: it has layers 0 to {count - 1}, not {', '.join(map(str, wrong))}. "
                "Correct the layers of the policy."
            )

    def capture(self, documents: Sequence[Document]) -> list[Features]:
        """One forward of the documents, padded on the right; features are cut per document and own their memory.

        They are in the settings' dtype on the target's device; `aux_TC` has no columns without layers, and `last_TH`
        none where the settings want no last hidden state. The same documents in the same batch give the same bits.
        Raises ValueError for empty documents, for ids outside the vocabulary and for a short read.
        """
        lengths = [self._checked_length(document) for document in documents]
        tokens_BS = np.zeros((len(documents), max(lengths)), dtype=np.int64)
        for row, document in enumerate(documents):
            tokens_BS[row, : lengths[row]] = document.tokens
        # no_grad, not inference_mode: a step saves the features for its backward, which inference tensors refuse.
        with torch.no_grad(), self._outputs() as outputs:
            # Padding stands at the right, where causal attention never looks: without a mask the fast kernels apply.
            last_BSH = self._decoder(
                input_ids=upload(tokens_BS, self._target.device), use_cache=False
            ).last_hidden_state
            aux = [outputs[layer] for layer in self._settings.layers]
            for read_BSH in (*aux, last_BSH):
                if read_BSH.shape[:2] != tokens_BS.shape:
                    raise ValueError(
                        f"capture of {self._target.settings.name}: asked for rows {tokens_BS.shape}, "
                        f"read {tuple(read_BSH.shape[:2])}. Capture with another engine or transformers version."
                    )
            return [self._cut(aux, last_BSH, row, length) for row, length in enumerate(lengths)]

    def _cut(self, aux: list[torch.Tensor], last_BSH: torch.Tensor, row: int, length: int) -> Features:
        width = last_BSH.shape[-1]
        aux_TC = torch.empty(length, len(aux) * width, dtype=self._dtype, device=last_BSH.device)
        for i, out_BSH in enumerate(aux):
            aux_TC[:, i * width : (i + 1) * width] = out_BSH[row, :length]
        last_TH = torch.empty(length, width * self._settings.last_hidden, dtype=self._dtype, device=last_BSH.device)
        if self._settings.last_hidden:
            last_TH.copy_(last_BSH[row, :length])
        return Features(aux_TC=aux_TC, last_TH=last_TH)

    def _checked_length(self, document: Document) -> int:
        tokens, vocabulary = document.tokens, self._target.settings.geometry.vocab_size
        if len(tokens) == 0:
            raise ValueError(f"document {document.index} has no tokens. Drop empty rows from the source.")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"document {document.index} has token ids from {low} to {high}, but {self._target.settings.name} has "
                f"{vocabulary}. Tokenise the source with the target's own tokenizer."
            )
        return len(tokens)

    @contextmanager
    def _outputs(self) -> Iterator[dict[int, torch.Tensor]]:
        """The outputs of the wanted layers by id, filled by hooks that are there only inside the block."""
        outputs: dict[int, torch.Tensor] = {}

        def keep(layer: int):
            def hook(module: torch.nn.Module, args: object, out: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
                outputs[layer] = out if isinstance(out, torch.Tensor) else out[0]  # a tuple in older transformers

            return hook

        hooks = [self._decoder.layers[i].register_forward_hook(keep(i)) for i in set(self._settings.layers)]
        try:
            yield outputs
        finally:
            for hook in hooks:
                hook.remove()
