"""TensorBoard's event files, written without TensorBoard."""
