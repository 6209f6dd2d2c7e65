-- A prompt is in flight at the death of its engine or worker, or may be: keep or drop the marks of such requests.
-- KEYS done checkpoints; ARGV bit 1|0 [index:request]…
if redis.call('GETBIT', KEYS[1], ARGV[1]) == 1 then return 0 end
for i = 3, #ARGV do
  if ARGV[2] == '1' then
    redis.call('HSET', KEYS[2], 'd:' .. ARGV[i], 1)
  else
    redis.call('HDEL', KEYS[2], 'd:' .. ARGV[i])
  end
end
return 1
