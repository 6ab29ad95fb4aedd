"""Less than f32, where somebody asks for it: what is asked for, what calibration inputs show, what stays f32."""
