-- Let a paused or cancelled run go on.
-- KEYS state parked, then the other keys that live as long as the run
-- Returns the status before; changes nothing unless that was paused or cancelled.
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'paused' and status ~= 'cancelled' then return status or '' end
redis.call('HSET', KEYS[1], 'status', 'running')
redis.call('DEL', KEYS[2])
for _, key in ipairs(KEYS) do redis.call('PERSIST', key) end
return status
